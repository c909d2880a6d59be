"""Attack 9: a small file of a stranger fills the memory, or ends a command with a traceback."""

import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

from openpyxl import Workbook

from tests.security.attack import MOST_BYTES, MOST_CPU_S, Done, GotIn, product


def attack(tree: Path) -> str:
    with product(tree) as its:
        got_in, refused = [], []
        for what, words in _bombs(its.home):
            done = its.run(*words, is_bounded=True)
            if how := damage(done):
                got_in.append(f"{what}: {how}")
            elif done.code == 0:
                got_in.append(f"{what}: it was taken")
            else:
                refused.append(f"{what}: {done.last_line[-100:]}")
        if got_in:
            raise GotIn("; ".join(got_in))
        return f"{len(refused)} files are refused in a line each, such as {refused[0]}"


def damage(done: Done) -> str | None:
    """What no file of a stranger may do to a command."""
    if done.code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        return f"it worked for more than {MOST_CPU_S} s"
    if "MemoryError" in done.said or "bad_alloc" in done.said:
        return f"it took more than {MOST_BYTES >> 30} GB"
    return f"a traceback: {done.last_line[:80]}" if done.is_traceback else None


def _bombs(folder: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Each with the command that reads it."""
    workbook = folder / "results.xlsx"
    _write_workbook(workbook, "A1:XFD1048576")
    yield "one merged cell", ("import", workbook, "--store", folder / "store")
    aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        aliases += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    for name, text in (
        ("aliases", aliases),
        ("a million digits", f"name: m\nsteps: {'9' * 1_000_000}\n"),
        ("200,000 brackets", "[" * 200_000),
    ):
        spec = folder / f"{name.replace(' ', '-')}.yaml"
        spec.write_text(text, encoding="utf-8")
        for verb in ("train", "sweep"):
            yield f"{name} as a spec of {verb}", (verb, spec, "--store", folder / "store")


def _write_workbook(path: Path, merged: str) -> None:
    book, plain = Workbook(), path.with_suffix(".plain")
    book.active.append(["model", "tokens_per_sec"])
    book.active.merge_cells("A1:B1")
    book.save(plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b'ref="A1:B1"', f'ref="{merged}"'.encode()))
