"""The same damage to checkpoints of plain torch DCP, of Ray Train and of ours: ``make compare-damage``.

Every training here runs for real, in each system's own code: to step 8, on to step 12, then something
happens, and it is started again. What it does then is printed as a Markdown table.
"""

import logging
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from cluster.local_ray.private_ray import private_ray
from tests.bench.systems import EVERY, Files, Ours, PlainDcp, RayTrain, Reached, System

_BEFORE, _NEWEST, _END = 2 * EVERY, 3 * EVERY, 4 * EVERY
# What ends a traceback, and the modules in front of its exception.
_CAUSE = re.compile(r"\s*[\w.]+(Error|Exception): ")
_PLACE = re.compile(r"^[\w.]*\.(?=\w+: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A system's folder after step 8, after step 12, and what a training reaches that nobody disturbs."""

    before: Path
    after: Path
    undisturbed: Reached


def main(systems: Sequence[System] = (PlainDcp(), RayTrain(), Ours())) -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as name, _quiet(), private_ray():
        courses = [_course(system, Path(name) / str(number)) for number, system in enumerate(systems)]
        rows = [
            (what, [_told(system, course, damage) for system, course in zip(systems, courses, strict=True)])
            for what, damage in DAMAGES.items()
        ]
    print("| | " + " | ".join(system.name for system in systems) + " |")
    print("|---" * (len(systems) + 1) + "|")
    for what, told in rows:
        print(f"| {what} | " + " | ".join(told) + " |")
    return all(told[-1].startswith("goes on") or what == LOST for what, told in rows)


@contextmanager
def _quiet() -> Iterator[None]:
    """The systems' own logs, and a group of one rank for those that want one."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _course(system: System, folder: Path) -> Course:
    undisturbed = system.train(_new(folder / "undisturbed"), _END)
    work = _new(folder / "work")
    system.train(work, _BEFORE)
    before = _copy(work, folder / "before")
    system.train(work, _NEWEST)
    return Course(before=before, after=work, undisturbed=undisturbed)


def _told(system: System, course: Course, damage: "Damage") -> str:
    with TemporaryDirectory(prefix="longhaul-bench-") as name:
        folder = damage(system, course, Path(name) / "damaged")
        try:
            reached = system.train(folder, _END)
        except (Exception, CheckpointException) as error:
            return f"does not start: {_summary(error, folder)}"
    if reached.digest != course.undisturbed.digest:
        return f"**goes on after step {reached.start} with damaged weights**, says nothing"
    if reached.start == 0:
        return "**begins again at step 0**, says nothing"
    return f"goes on after step {reached.start}, ends as undisturbed"


def _summary(error: BaseException, folder: Path) -> str:
    """Its cause, in a line: where it comes with a traceback in its text, that one's last line."""
    if isinstance(error, CheckpointException):
        error = next(failure for failure, _ in error.failures.values())
    while error.__cause__:
        error = error.__cause__
    causes = [line for line in str(error).splitlines() if _CAUSE.match(line)]
    text = causes[-1].strip() if causes else f"{type(error).__name__}: {error}"
    return shorten(
        _PLACE.sub("", text).replace(f"{folder}: ", "").replace(f"{folder}", "").replace("|", "/"), 110
    ).rstrip(": ")


Damage = Callable[[System, Course, Path], Path]


def _to_files(harm: Callable[[Files], None]) -> Damage:
    """As something that happens to the files after step 12."""

    def damage(system: System, course: Course, folder: Path) -> Path:
        _copy(course.after, folder)
        harm(system.files(folder))
        return folder

    return damage


def _flip_a_bit(files: Files) -> None:
    data = bytearray(files.payload.read_bytes())
    data[len(data) // 2] ^= 1
    files.payload.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _crash_between_files(system: System, course: Course, folder: Path) -> Path:
    """All that was there after step 8, and of step 12's save all but its last file."""
    _copy(course.before, folder)
    found = system.files(course.after)
    torn = folder / found.newest.relative_to(course.after)
    shutil.copytree(found.newest, torn)
    (torn / found.last.name).unlink()
    return folder


LOST = "its index is gone"
DAMAGES: dict[str, Damage] = {
    "nothing": _to_files(lambda files: None),
    "a flipped bit in the newest": _to_files(_flip_a_bit),
    "the newest truncated": _to_files(lambda files: _cut(files.payload)),
    "a crash between the files of a save": _crash_between_files,
    "a crash within the index": _to_files(lambda files: _cut(files.index)),
    LOST: _to_files(lambda files: _remove(files.whole_index)),
    "the oldest is missing": _to_files(lambda files: _remove(files.oldest)),
}


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
