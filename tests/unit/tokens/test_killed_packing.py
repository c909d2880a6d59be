"""A packing that is killed at any file operation and begun again leaves the bytes of an undisturbed one.

It is killed for real: a forked process ends itself by SIGKILL right before the operation. Of what is written
in the killed operation, half is there.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores import local
from jobs.cli.__main__ import main
from jobs.training.task.token_index import INDEX
from tests.unit.seeds import SEED

# Python tells of these before they are done; of a write and a flush it does not.
_TOLD = {
    "open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.listdir",
    "os.scandir", "fcntl.flock",
}  # fmt: skip
_FORKS = get_context("fork")
_DEADLINE_S = 120
_FEW = 12

HOW = {
    "text": ["a.jsonl"],
    "held out": ["a.jsonl", "--hold-out", "25%"],
    "chat": ["chat.jsonl", "--chat", "--chat-template", "chatml", "--seq-len", "128"],
}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"story {number} " * (number % 7)}) for number in range(1, 200)]
    Path("a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    says = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    Path("chat.jsonl").write_text("\n".join([json.dumps({"messages": says})] * 20), encoding="utf-8")
    return tmp_path


class _Killed:
    """Counts the file operations of this process, and ends it before the operation ``number``."""

    def __init__(self, number: int | None) -> None:
        self.names: list[str] = []
        self._number = number

    def count(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        self.names.append(name)
        if len(self.names) == self._number:
            self._number = None
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """For a process of its own: no audit hook is ever removed."""
        write_all, fsync = local.write_all, os.fsync

        def write(file: Any, data: memoryview) -> None:
            self.count("write", lambda: write_all(file, data[: len(data) // 2]))
            write_all(file, data)

        def flush(descriptor: Any) -> None:
            self.count("fsync")
            fsync(descriptor)

        local.write_all, os.fsync = write, flush
        sys.addaudithook(lambda event, _: self.count(event) if event in _TOLD else None)


def _pack(words: list[str], out: Path, number: int | None) -> None:
    sys.stdout = sys.stderr = out.with_suffix(".said").open("w", encoding="utf-8")
    killed = _Killed(number)
    killed.watch()
    code = main(["pack", *words, "--out", str(out)])
    _operations(out).write_text(json.dumps(killed.names), encoding="utf-8")
    sys.exit(code)


def _operations(out: Path) -> Path:
    return out.with_suffix(".operations")


def exit_code(words: list[str], out: Path, number: int | None = None) -> int | None:
    """Of a packing that is killed before its file operation of this number; as of ``subprocess``."""
    process = _FORKS.Process(target=_pack, args=(words, out, number))
    process.start()
    process.join(_DEADLINE_S)
    try:
        return process.exitcode
    finally:
        process.kill()
        process.join()


def objects_in(place: Path) -> dict[str, bytes]:
    """Without what was half written, which no object's name is."""
    files = (path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def undisturbed(words: list[str], folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Its objects and its file operations."""
    # Once before: what it imports, and what it keeps in memory, is there from then on.
    assert main(["pack", *words, "--out", str(folder / "first")]) == 0
    whole = folder / "whole"
    assert exit_code(words, whole) == 0
    assert objects_in(whole) == objects_in(folder / "first")
    return objects_in(whole), json.loads(_operations(whole).read_text(encoding="utf-8"))


def kill_and_begin_again(words: list[str], out: Path, number: int, whole: dict[str, bytes]) -> None:
    assert exit_code(words, out, number) == -signal.SIGKILL
    left = objects_in(out) if out.exists() else {}
    assert {name: whole[name] for name in left} == left
    # With the index, everything else is there.
    assert INDEX not in left or left == whole
    again = exit_code(words, out)
    assert again == (2 if INDEX in left else 0), out.with_suffix(".said").read_text(encoding="utf-8")
    assert objects_in(out) == whole


@pytest.mark.parametrize("how", HOW)
def test_a_packing_that_is_killed_at_any_file_operation_is_begun_again(how: str, texts: Path) -> None:
    whole, operations = undisturbed(HOW[how], texts)
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**31))
    for number in random.Random(seed).sample(range(1, len(operations) + 1), _FEW):
        try:
            kill_and_begin_again(HOW[how], texts / f"killed-{number}", number, whole)
        except BaseException as error:
            error.add_note(f"{SEED}={seed}: before {operations[number - 1]}, operation {number}")
            raise


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
def test_a_packing_that_is_killed_at_each_file_operation_is_begun_again(how: str, texts: Path) -> None:
    whole, operations = undisturbed(HOW[how], texts)
    # What makes an object: its folder, its bytes, the flush of both, its name.
    assert {"open", "os.mkdir", "write", "fsync", "os.rename", "os.remove"} <= {*operations}
    for number in range(1, len(operations) + 1):
        kill_and_begin_again(HOW[how], texts / f"killed-{number}", number, whole)
    print(f"killed at each of {len(operations)} file operations")
