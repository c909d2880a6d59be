"""Choosing the generation to go on from among 10,000 that are all kept, in a directory."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import LogRecord, encode
from checkpointing.log.history import Entry, Generation, Lease, LogView, Pin
from checkpointing.stores.contract import Buffer
from checkpointing.stores.local import LocalStore
from tests.unit.small_generations import RUN, Ranks, generation

NUM_GENERATIONS, REPEATS = 10_000, 5
REQUESTS_BOUND, BOUND_S = 5, 0.3
# Of a listing, as object storage counts.
_NAMES_PER_REQUEST = 1000


def main(num_generations: int = NUM_GENERATIONS) -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        newest = _fill(Path(folder), num_generations)
        stores = [CountedStore(Path(folder)) for _ in range(REPEATS)]
        seconds = median(_resume_s(store, newest) for store in stores)
    num_requests = max(store.num_requests for store in stores)
    bounds = f"bounds {REQUESTS_BOUND}, {BOUND_S} s"
    print(f"resume choice  {num_requests} requests, {seconds:.3f} s: {num_generations:,} kept ({bounds})")
    return num_requests <= REQUESTS_BOUND and seconds <= BOUND_S


class CountedStore(LocalStore):
    """A directory that counts what object storage would be asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_requests = 0

    def put(self, name: str, data: Buffer) -> None:
        self.num_requests += 1
        super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        self.num_requests += 1
        super().create(name, data)

    def get(self, name: str) -> bytes:
        self.num_requests += 1
        return super().get(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.num_requests += 1
        return super().get_range(name, start, into)

    def size(self, name: str) -> int:
        self.num_requests += 1
        return super().size(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        found = list(super().list(prefix, after=after))
        self.num_requests += 1 + len(found) // _NAMES_PER_REQUEST
        yield from found

    def delete(self, name: str) -> None:
        self.num_requests += 1
        super().delete(name)


def _resume_s(store: CountedStore, newest: str) -> float:
    started = time.perf_counter()
    repository = Repository(store, RUN)
    view = repository.refresh()
    decision = choose(view)
    assert decision.chosen is not None
    manifest = repository.manifest(view.generations[-1])
    taken_s = time.perf_counter() - started
    if not decision.chosen.name == manifest.cut.generation == newest:
        raise RuntimeError(f"{decision.chosen.name} was chosen instead of {newest}")
    return taken_s


def _fill(folder: Path, num_generations: int) -> str:
    """A log of two records for each generation, and a real generation last; its name.

    What is never read but listed is written without waiting for the disk.
    """
    log = folder / "runs" / RUN / "log"
    log.mkdir(parents=True)
    number_of_large = 2 * num_generations
    for number in range(1, number_of_large):
        _write(log, number, Lease(owner="bench"), LogView(term=1))
    kept = tuple(_good(number) for number in range(1, num_generations))
    _write(log, number_of_large, Pin(name=kept[-1].name), LogView(term=1, generations=kept))
    repository = Repository(LocalStore(folder), RUN)
    term = repository.take_over("a bench")
    return Ranks(repository, term, num_saved=num_generations).save(num_generations * 10)


def _write(log: Path, number: int, entry: Entry, view: LogView) -> None:
    record = LogRecord(number=number, id="bench", written_s=0.0, entry=entry, view=view)
    (log / f"{number:012d}.json").write_bytes(encode(record))


def _good(number: int) -> Generation:
    return generation(number, is_verified=True)
