"""The power fails at any moment: the newest generation is whole, and nothing is left lying about."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path

import pytest

from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Load, Resumed
from checkpointing.stores.contract import Store, abandoned_uploads, abort_uploads
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.faults import FaultyStore, PowerCut
from tests.unit.forgetful import ForgetfulDisk, Luck
from tests.unit.small_generations import RUN, Ranks, content, load, names

NUM_RANKS = 2
TWO = Retention(last=2, best=0)


def live(store: Store, acknowledged: Callable[[int], None]) -> None:
    """Two attempts: saves that retire older ones, a takeover that cleans up, and saves again."""
    first = Repository(store, RUN)
    ranks = Ranks(first, first.take_over("first"), world_size=NUM_RANKS, retention=TWO)
    for step in (10, 20, 30):
        ranks.save(step)
        acknowledged(step)
    second = Repository(store, RUN)
    term = second.take_over("second")
    clean(second)
    newest = second.view.generations[-1]
    second.append(Load(name=newest.name), term=term)
    load(second, newest)
    second.append(Resumed(name=newest.name), term=term)
    ranks = Ranks(second, term, world_size=NUM_RANKS, retention=TWO)
    ranks.save(40)
    acknowledged(40)


def clean(repository: Repository) -> None:
    """The janitor."""
    for name, objects in repository.garbage().items():
        repository.delete_objects(name, objects)
    left = abandoned_uploads(repository.store, f"runs/{RUN}", before=datetime.now(UTC))
    abort_uploads(repository.store, left)


def go_on(store: Store, acknowledged: int) -> None:
    """A new attempt finds the newest acknowledged step or a newer one, whole, saves, and cleans up."""
    repository = Repository(store, RUN)
    term = repository.take_over("next")
    chosen = choose(repository.view).chosen
    assert (chosen.step if chosen else 0) >= acknowledged
    for found in repository.view.generations:
        assert load(repository, found) == content(found.name, NUM_RANKS)
    Ranks(repository, term, world_size=NUM_RANKS, retention=TWO).save(1000)
    clean(repository)
    assert num_good(repository) >= min(2, 1 + acknowledged // 10)
    kept = names(Repository(store, RUN).refresh().generations)
    assert {name.split("/")[3] for name in store.list(f"runs/{RUN}/gen")} == set(kept)


def strays(root: Path) -> list[Path]:
    """Files that are no objects: half written ones."""
    objects = {root / name for name in LocalStore(root).list("runs")}
    return [path for path in root.rglob("*") if path.is_file() and path not in objects]


def num_good(repository: Repository) -> int:
    return sum(found.is_good for found in repository.view.generations)


def num_calls(store: Store, act: Callable[[Store], None]) -> int:
    watched = FaultyStore(store)
    act(watched)
    return len(watched.calls)


def cut_short(inner: Store, cut_at: int, *, after: bool) -> int:
    """The newest step that was acknowledged before the power failed."""
    steps = [0]
    with pytest.raises(PowerCut):
        live(FaultyStore(inner, cut_at=cut_at, after=after), steps.append)
    return steps[-1]


@pytest.mark.usefixtures("each_form")
def test_a_power_cut_at_any_storage_call_leaves_a_whole_newest_generation() -> None:
    total = num_calls(MemoryStore(), lambda store: live(store, lambda step: None))
    cuts = [(cut_at, after) for cut_at in range(1, total + 1) for after in (False, True)]
    for cut_at, after in cuts:
        inner = MemoryStore()
        go_on(inner, cut_short(inner, cut_at, after=after))
    print(f"{len(cuts)} power cuts at {total} storage calls, each survived")
    assert total > 40


def fails_again(objects: Mapping[str, bytes], second: int, after: bool, acknowledged: int) -> bool:
    """Whether the next attempt makes that many calls; if so it is cut there, and the one after it goes on."""
    store = MemoryStore()
    for name, data in objects.items():
        store.put(name, data)
    try:
        go_on(FaultyStore(store, cut_at=second, after=after), acknowledged)
    except PowerCut:
        go_on(store, acknowledged)
        return True
    return False


def remains(cut_at: int, after: bool) -> tuple[dict[str, bytes], int]:
    inner = MemoryStore()
    acknowledged = cut_short(inner, cut_at, after=after)
    return {name: inner.get(name) for name in inner.list("runs")}, acknowledged


def test_a_second_power_cut_while_it_recovers_changes_nothing() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    total = num_calls(MemoryStore(), lambda store: live(store, lambda step: None))
    num_cut = 0
    for _ in range(100):
        objects, acknowledged = remains(rng.randint(1, total), rng.random() < 0.5)
        num_cut += fails_again(objects, rng.randint(1, 30), rng.random() < 0.5, acknowledged)
    print(f"{num_cut} pairs of power cuts, each survived")
    assert num_cut > 50


@pytest.mark.soak
def test_any_two_power_cuts_change_nothing() -> None:
    total = num_calls(MemoryStore(), lambda store: live(store, lambda step: None))
    num_cut = 0
    for first, after in product(range(1, total + 1), (False, True)):
        objects, acknowledged = remains(first, after)
        for second in count(1):
            answers = [fails_again(objects, second, again, acknowledged) for again in (False, True)]
            num_cut += sum(answers)
            if not any(answers):
                break
    print(f"{num_cut} pairs of power cuts, each survived")
    assert num_cut > 5_000


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="finds out what is flushed through Linux's /proc"
)
def test_what_was_not_flushed_to_a_disk_may_vanish_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, attic = tmp_path / "disk", tmp_path / "attic"
    folder.mkdir()
    attic.mkdir()
    disk = ForgetfulDisk(folder, attic)
    steps: list[tuple[int, int]] = [(0, 0)]
    with monkeypatch.context() as patch:
        disk.watch(patch)
        live(LocalStore(folder / "store"), lambda step: steps.append((len(disk.moments), step)))
        disk.note("end")
        num_cuts = 0
        rng = random.Random(3)
        for number, moment in enumerate(disk.moments):
            acknowledged = max(step for since, step in steps if since <= number)
            for luck in (Luck.NOTHING, rng.choice((Luck.NAMES, Luck.SOME_NAMES))):
                target = tmp_path / f"cut-{num_cuts}"
                disk.after_a_cut(moment, luck, target, rng)
                go_on(LocalStore(target / "store"), acknowledged)
                assert strays(target / "store") == []
                num_cuts += 1
    print(f"{num_cuts} power cuts at {len(disk.moments)} moments of a disk, each survived")
    assert num_cuts > 300
