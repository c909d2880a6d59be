"""Saving to a local disk and restoring from it, beside writing and reading the same bytes plainly.

Disks are noisy: pairs are measured right after each other, in turn first and second, and medians of their
ratios tell. All of it is in one process, with memory that was used before.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from checkpointing.format.digests import digests
from checkpointing.format.loading import fill
from checkpointing.format.manifest import Cut, FilePart, file_name, manifest_of
from checkpointing.format.reshard import plan
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.snapshot import Arena, Landing, Layout, layout
from tests.bench.apart import apart
from tests.bench.states import LAYERS, pieces_of

NUM_WRITES, NUM_READS = 7, 7
TOTAL_BOUND, DIGEST_BOUND, READ_BOUND = 1.3, 0.1, 0.7


def main(num_layers: int = LAYERS) -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        found = apart(__name__, folder, num_layers)
    size = found["num_bytes"]
    total = median(ours / plain for ours, plain in found["writes_s"])
    digest = median(found["digests_s"]) / median(plain for _, plain in found["writes_s"])
    print(f"to the disk    {_rates(size, found['writes_s'])}: {total:.2f}x (bound {TOTAL_BOUND}x)")
    rate = size / median(found["digests_s"]) / 1e9
    print(f"  its digests  {rate:.1f} GB/s: {digest:.3f} of the plain write (bound {DIGEST_BOUND})")
    shares = {}
    for where in ("disk", "cache"):
        reads_s = found[f"{where}_reads_s"]
        shares[where] = median(plain / ours for ours, plain in reads_s)
        bound = f"rate {shares[where]:.2f} (bound {READ_BOUND})"
        print(f"{'restoring':14} from the {where}: {_rates(size, reads_s)}: {bound}")
    return bool(total <= TOTAL_BOUND and digest <= DIGEST_BOUND and min(shares.values()) >= READ_BOUND)


def _rates(size: int, pairs_s: list[list[float]]) -> str:
    ours, plain = (size / median(seconds) / 1e9 for seconds in zip(*pairs_s, strict=True))
    return f"{ours:.2f} GB/s beside plainly {plain:.2f}"


def _measure(folder: Path, num_layers: int) -> dict[str, Any]:
    """In the process of its own."""
    pieces = pieces_of(num_layers)
    plan_of_file = layout(pieces)
    arena = Arena(pieces, plan_of_file)
    arena.take(pieces)
    disk = LocalTier(folder, "bench", 2)
    saves = _Saves(disk, folder, arena.data, plan_of_file)
    plain = folder / "plain"

    def make_room() -> None:
        saves.make_room()
        plain.unlink(missing_ok=True)

    writes_s = _pairs(NUM_WRITES, saves.save, lambda: _write(plain, arena.data), before=make_room)
    saves.save()
    plain.unlink()
    landing = Landing(pieces)
    cut, part = saves.newest
    reads: dict[str, Any] = {}
    # The cache comes last: until then every read drops it first.
    file = _file(folder, cut)
    for where, forgotten in (("disk", [file]), ("cache", [])):
        reads[f"{where}_reads_s"] = _pairs(
            NUM_READS,
            lambda: _restore(disk, cut, part, landing),
            lambda: _read(file, arena.data),
            before=partial(forget, forgotten),
        )
    return {"num_bytes": len(arena.data), "writes_s": writes_s, "digests_s": saves.digests_s, **reads}


class _Saves:
    """As the background writer does it: digests, the file, the part beside it.

    That the oldest goes comes after a save is durable, and is left out of its time.
    """

    def __init__(self, disk: LocalTier, folder: Path, data: memoryview, plan_of_file: Layout) -> None:
        self._disk = disk
        self._folder = folder / "runs" / "bench" / "gen"
        self._data = data
        self._layout = plan_of_file
        self._number = 0
        self.digests_s: list[float] = []
        self.newest = self._share(())

    def save(self) -> None:
        self._number += 1
        started = time.perf_counter()
        chunks = digests(self._data)
        self.digests_s.append(time.perf_counter() - started)
        self.newest = self._share(chunks)
        self._disk.keep(*self.newest, self._data)

    def make_room(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _share(self, chunks: tuple[str, ...]) -> tuple[Cut, FilePart]:
        cut = Cut(
            generation=f"{self._number:012d}-t1-bench.{self._number}",
            run="bench",
            step=self._number,
            term=1,
            number=self._number,
            strategy="ddp",
            world_size=1,
            created_s=time.time(),
        )
        part = FilePart(
            rank=0,
            file=file_name(0),
            num_bytes=self._layout.num_bytes,
            chunks=chunks,
            tensors=self._layout.tensors,
            shards=self._layout.shards,
        )
        return cut, part


def _pairs(
    count: int, ours: Callable[[], None], plain: Callable[[], None], before: Callable[[], Any] = lambda: None
) -> list[tuple[float, float]]:
    """Seconds of each, ``count`` times, after one round that doesn't count."""
    found = []
    for turn in range(count + 1):
        taken = {}
        for work in (ours, plain) if turn % 2 else (plain, ours):
            before()
            started = time.perf_counter()
            work()
            taken[work] = time.perf_counter() - started
        found.append((taken[ours], taken[plain]))
    return found[1:]


def _restore(disk: LocalTier, cut: Cut, part: FilePart, landing: Landing) -> None:
    manifest = manifest_of(cut, [part])
    fill(manifest, plan(manifest, landing.wants), landing.buffers, [disk.place(cut.generation)])
    landing.settle()


def _write(path: Path, data: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def _read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        while into and (count := file.readinto(into)):
            into = into[count:]


def forget(paths: Sequence[Path]) -> None:
    """What the system holds of them in memory, so that they come from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _file(folder: Path, cut: Cut) -> Path:
    return folder / "runs" / "bench" / "gen" / cut.generation / file_name(0)


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]), int(sys.argv[2]))))
