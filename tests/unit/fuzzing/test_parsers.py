"""No file of a stranger ends a parser with a traceback, fills the memory, hangs, or writes elsewhere.

``LONGHAUL_SEED`` repeats a run: its files follow from the seed.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.fuzzing import parsers

# Of each kind: 2,000 files in all, half a minute of one core; and two hours of it.
FEW, MANY = 50, 100_000

BROKEN = """
import re
import sys
from pathlib import Path
from tests.unit.fuzzing import child

class Refused(Exception):
    pass

def hangs(data, folder):
    while True:
        pass

def writes(data, folder):
    (folder.parent / "outside").write_bytes(b"")

def starts(data, folder):
    import os
    os.system("true")

def fills(data, folder):
    bytearray(2 << 30)

def raises(data, folder):
    int("x")

def talks(data, folder):
    raise Refused("x" * 80_000_000)

def refuses(data, folder):
    (folder / "inside").write_bytes(data)
    raise Refused("no")

folder = Path(sys.argv[1]) / "in"
folder.mkdir()
child.DEADLINE_S = 1
child.bound_memory(child.MEMORY_BYTES)
sys.addaudithook(child.watch)
for read in (hangs, writes, starts, fills, raises, talks, refuses):
    parser = child.Parser(read=read, refusals=(Refused,), samples=(b"a",))
    lines = (child.tried(parser, folder, 1, 10) or "well").splitlines()
    names = ("well", "MemoryError", "ValueError", "AssertionError", "tests.unit.fuzzing.child.")
    found = [line for line in lines if line.startswith(names)]
    print(read.__name__, re.sub(r"for \\d+ bytes$", "for ", found[0].removeprefix(names[-1])))
"""


def run(*arguments: object, folder: Path, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    # Threads take addresses, and temporary files belong into the folder.
    environment = {**os.environ, "TMPDIR": str(folder), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=parsers.ROOT,
        env={**environment, "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def fuzz(folder: Path, seed: int, num_examples: int, *names: str, timeout_s: float) -> None:
    module = "tests.unit.fuzzing.child"
    done = run("-m", module, seed, num_examples, folder, *names, folder=folder, timeout_s=timeout_s)
    well = [line.removesuffix(": well") for line in done.stdout.splitlines() if line.endswith(": well")]
    assert well == [*names], f"LONGHAUL_SEED={seed}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, done.stderr


def test_a_few_hostile_files_are_refused_in_one_line(tmp_path: Path) -> None:
    assert FEW * len(parsers.PARSERS) >= 2000
    seed = int(os.environ.get("LONGHAUL_SEED", "1"))
    fuzz(tmp_path, seed, FEW, *parsers.PARSERS, timeout_s=600)


@pytest.mark.soak
@pytest.mark.parametrize("name", parsers.PARSERS)
def test_a_hundred_thousand_hostile_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    seed = int(os.environ.get("LONGHAUL_SEED") or random.SystemRandom().randrange(2**31))
    fuzz(tmp_path, seed, MANY, name, timeout_s=6 * 3600)


def test_a_parser_that_breaks_a_rule_is_found_out(tmp_path: Path) -> None:
    done = run("-c", BROKEN, tmp_path, folder=tmp_path, timeout_s=120)
    outside = tmp_path / "outside"
    assert done.stdout.splitlines() == [
        "hangs TooLong",
        f"writes WroteOutside: {outside}",
        "starts WroteOutside: os.system",
        "fills MemoryError",
        "raises ValueError: invalid literal for int() with base 10: 'x'",
        "talks AssertionError: a refusal of 80000000 characters for ",
        "refuses well",
    ], done.stderr
    assert not outside.exists()
