"""Every object of a run is damaged in every way: nothing wrong is ever loaded, and the run goes on."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format import pieces
from checkpointing.format.loading import verify
from checkpointing.format.manifest import Cut, FilePart, Manifest, manifest_of
from checkpointing.generations.choice import OnDisk, choose
from checkpointing.generations.repository import Repository
from checkpointing.log.history import LogView
from checkpointing.saving.local_tier import LocalTier
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, content, cut_of, file_of, load_from, part_of

NUM_RANKS = 2
NUM_FLIPS = 25
NUM_TRUNCATIONS = 5
STEPS = (10, 20, 30)
LOCAL_ONLY = 40

Objects = Mapping[str, bytes]


@pytest.fixture(scope="module", params=["one object", "pieces"])
def stored(request: pytest.FixtureRequest) -> Objects:
    """A run with three good generations."""
    store = MemoryStore()
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("first"), world_size=NUM_RANKS)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pieces":
            patch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
        for step in STEPS:
            ranks.save(step)
    return {name: store.get(name) for name in store.list("runs")}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalTier, Path]:
    """The same run's newest two on the node's disk, and one that did not get to the store any more."""
    root = tmp_path_factory.mktemp("disk")
    disk = LocalTier(root, RUN, 9)
    for number, step in enumerate((*STEPS, LOCAL_ONLY), start=1):
        cut = cut_of(step, term=1, number=number, world_size=NUM_RANKS)
        for rank in range(NUM_RANKS):
            disk.keep(cut, part_of(cut, rank), memoryview(file_of(cut, rank)))
    return disk, root


def damages(name: str, objects: Objects, rng: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """None for an object that is gone."""
    data = objects[name]
    yield "emptied", b""
    yield "deleted", None
    yield "one byte longer", data + b"\0"
    for other in _alike(name, objects):
        yield f"replaced by {other}", objects[other]
    for _ in range(NUM_TRUNCATIONS):
        yield "truncated", data[: rng.randrange(len(data))]
    for _ in range(NUM_FLIPS):
        flipped = bytearray(data)
        place, bit = rng.randrange(len(data)), rng.randrange(8)
        flipped[place] ^= 1 << bit
        yield f"bit {bit} of byte {place} flipped", bytes(flipped)


def _alike(name: str, objects: Objects) -> list[str]:
    """Others of the same kind: older and newer ones, and those of other ranks."""
    kind = name.rpartition("/")[2].strip("-.0123456789")
    alike = (other for other in objects if other.rpartition("/")[2].strip("-.0123456789") == kind)
    return [other for other in alike if objects[other] != objects[name]]


def store_of(objects: Objects) -> MemoryStore:
    store = MemoryStore()
    for name, data in objects.items():
        store.put(name, data)
    return store


def store_with(objects: Objects, name: str, data: bytes | None) -> MemoryStore:
    store = store_of(objects)
    if data is None:
        store.delete(name)
    else:
        store.put(name, data)
    return store


def resume(store: MemoryStore, disk: LocalTier | None) -> tuple[str, bytes, LogView]:
    """As a run does: the newest that can be loaded, stepping back over what can't."""
    repository = Repository(store, RUN)
    term = repository.take_over("next")
    refused: dict[str, str] = {}
    shares = disk.inventory() if disk else []
    while True:
        chosen = choose(repository.view, usable(shares), refused=refused).chosen
        assert chosen is not None, "began at step 0 over good generations"
        near = [disk.place(chosen.name)] if disk else []
        try:
            found = repository.view.generation(chosen.name)
            manifest = repository.manifest(found) if found else put_together(chosen.name, shares)
            data = load_from(manifest, [*near, repository.place(chosen.name)])
            return chosen.name, data, repository.view
        except Corrupt as error:
            refused[chosen.name] = str(error)
            repository.quarantine(chosen.name, str(error), term=term)


def put_together(name: str, shares: Sequence[tuple[Cut, FilePart]]) -> Manifest:
    mine = [(cut, part) for cut, part in shares if cut.generation == name]
    return manifest_of(mine[0][0], [part for _, part in mine])


def usable(shares: Sequence[tuple[Cut, FilePart]]) -> list[OnDisk]:
    """Those of which all ranks' shares are there."""
    cuts = {cut.generation: cut for cut, _ in shares}
    return [
        OnDisk(name=name, step=cut.step, term=cut.term, number=cut.number)
        for name, cut in cuts.items()
        if {part.rank for found, part in shares if found.generation == name} == set(range(cut.world_size))
    ]


def found_damaged(store: MemoryStore) -> set[str]:
    """Generations that do not pass being read back whole."""
    repository = Repository(store, RUN)
    damaged = set()
    for found in repository.refresh().generations:
        try:
            for part in repository.manifest(found).parts:
                verify(part, repository.place(found.name))
        except Corrupt:
            damaged.add(found.name)
    return damaged


def test_nothing_damaged_in_the_store_is_ever_loaded(stored: Objects) -> None:
    rng = random.Random(5)
    num_damaged = num_stepped_back = 0
    newest = max(name.split("/")[3] for name in stored if "/gen/" in name)
    for name in stored:
        for damage, data in damages(name, stored, rng):
            loaded, values, view = resume(store_with(stored, name, data), None)
            assert values == content(loaded, NUM_RANKS), f"{name} {damage}: loaded wrong bytes"
            num_damaged += 1
            if loaded != newest:
                num_stepped_back += 1
                assert newest in name, f"{name} {damage}: went back to {loaded}"
                quarantined = view.generation(newest)
                assert quarantined is not None and quarantined.quarantined is not None
    print(f"{num_damaged} mutations of {len(stored)} objects, 0 loaded, {num_stepped_back} stepped back")
    assert num_damaged > 600
    assert num_stepped_back > 80


@pytest.mark.parametrize("has_all", [False, True], ids=["files only", "files and manifest"])
def test_a_generation_that_was_replaced_by_an_older_one_is_not_loaded(stored: Objects, has_all: bool) -> None:
    """Each of its objects is whole, and they fit each other."""
    *_, older, newest = sorted({name.split("/")[3] for name in stored if "/gen/" in name})
    store = store_of(stored)
    for name in (name for name in stored if newest in name):
        if has_all or not name.endswith("manifest.json"):
            store.put(name, stored[name.replace(newest, older)])
    assert found_damaged(store) == {newest}
    loaded, values, _ = resume(store, None)
    assert (loaded, values) == (older, content(older, NUM_RANKS))


def test_every_damage_to_a_generation_is_found_by_reading_it_back(stored: Objects) -> None:
    rng = random.Random(6)
    num_damaged = 0
    for name in (name for name in stored if "/gen/" in name):
        for damage, data in damages(name, stored, rng):
            found = found_damaged(store_with(stored, name, data))
            assert found == {name.split("/")[3]}, f"{name} {damage}"
            num_damaged += 1
    print(f"{num_damaged} mutations of generations, each found")
    assert num_damaged > 300


def test_nothing_damaged_on_a_disk_is_ever_loaded(stored: Objects, disk: tuple[LocalTier, Path]) -> None:
    near, root = disk
    rng = random.Random(7)
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    objects = {name: path.read_bytes() for name, path in paths.items()}
    num_damaged = num_stepped_back = 0
    for name, path in paths.items():
        for damage, data in damages(name, objects, rng):
            _write(path, data)
            loaded, values, _ = resume(store_of(stored), near)
            assert values == content(loaded, NUM_RANKS), f"{name} {damage}: loaded wrong bytes"
            num_damaged += 1
            is_newest = loaded.startswith(f"{LOCAL_ONLY:012d}")
            assert is_newest or name.split("/")[3].startswith(f"{LOCAL_ONLY:012d}")
            num_stepped_back += not is_newest
        _write(path, objects[name])
    print(f"{num_damaged} mutations of {len(paths)} files, 0 loaded, {num_stepped_back} stepped back")
    assert num_damaged > 400
    assert num_stepped_back > 100


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_what_is_damaged_on_the_disk_comes_from_the_store_and_the_reverse(
    stored: Objects, disk: tuple[LocalTier, Path], rank: int
) -> None:
    near, root = disk
    store = store_of(stored)
    repository = Repository(store, RUN)
    newest = repository.refresh().generations[-1]
    manifest = repository.manifest(newest)
    folder = f"runs/{RUN}/gen/{newest.name}"
    here = root / folder / manifest.parts[rank].file
    whole = here.read_bytes()
    _write(here, whole[:-1])
    store.delete(f"{folder}/{manifest.parts[1 - rank].file}")
    places = [near.place(newest.name), repository.place(newest.name)]
    assert load_from(manifest, places) == content(newest.name, NUM_RANKS)
    _write(here, whole)


def _write(path: Path, data: bytes | None) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    if data is not None:
        path.write_bytes(data)
