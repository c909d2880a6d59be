"""A run's generations in a store: only commits count, deletion leaves nothing, and nothing is begun over."""

from collections.abc import Iterator

import pytest

from checkpointing.errors import Corrupt, Fenced, NothingToResume
from checkpointing.format import manifest, pieces
from checkpointing.format.manifest import file_name
from checkpointing.generations.choice import Candidate, choose
from checkpointing.generations.repository import Repository, existing_run, generation_name
from checkpointing.generations.retention import Retention
from checkpointing.log.codec import MAC_BYTES
from checkpointing.log.history import Pin, Stop, Unpin
from checkpointing.saving.save import SaveFailed
from checkpointing.stores.contract import Buffer, Store, StoreError, Unavailable
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, content, cut_of, file_of, load, names, part_of

pytestmark = pytest.mark.usefixtures("each_form")

TWO = Retention(last=2, best=0)


class BrokenStore(MemoryStore):
    """Refuses all that it is told to, by beginnings of calls: ``"put runs/r/gen"``."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: tuple[str, ...] = ()

    def put(self, name: str, data: Buffer) -> None:
        self._refuse(f"put {name}")
        super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        self._refuse(f"create {name}")
        super().create(name, data)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self._refuse(f"get_range {name}")
        return super().get_range(name, start, into)

    def delete(self, name: str) -> None:
        self._refuse(f"delete {name}")
        super().delete(name)

    def _refuse(self, call: str) -> None:
        if call.startswith(self.refuses or "nothing"):
            raise Unavailable(f"refused: {call}")


class DeafStore(BrokenStore):
    """What it refuses to create lands all the same."""

    def create(self, name: str, data: Buffer) -> None:
        MemoryStore.create(self, name, data)
        self._refuse(f"create {name}")


def begin(store: Store, **more: object) -> tuple[Repository, Ranks]:
    repository = Repository(store, RUN)
    term = repository.take_over("me")
    return repository, Ranks(repository, term, **more)  # type: ignore[arg-type]  # options of it


def payload(store: Store) -> set[str]:
    """Names of generations of which there are objects."""
    return {name.split("/")[3] for name in store.list("runs/r/gen")}


def test_a_saved_generation_is_verified_and_comes_back() -> None:
    repository, ranks = begin(MemoryStore(), world_size=3)
    name = ranks.save(10)
    (found,) = Repository(repository.store, RUN).refresh().generations
    assert (found.name, found.step, found.is_good) == (name, 10, True)
    assert load(repository, found) == content(name, 3)
    assert (ranks.tally.num_committed, ranks.tally.durable_step) == (1, 10)


def test_without_its_commit_a_generation_does_not_exist() -> None:
    repository, _ = begin(MemoryStore())
    cut = cut_of(10, term=1, number=1)
    repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    assert Repository(repository.store, RUN).refresh().generations == ()


def test_its_size_is_that_of_all_its_objects() -> None:
    repository, ranks = begin(MemoryStore(), world_size=2)
    ranks.save(10)
    (found,) = repository.view.generations
    assert found.num_bytes == sum(
        len(repository.store.get(name)) for name in repository.store.list("runs/r/gen")
    )


def test_retired_ones_leave_no_object_behind() -> None:
    repository, ranks = begin(MemoryStore(), retention=TWO)
    saved = [ranks.save(step) for step in range(10, 60, 10)]
    assert payload(repository.store) == set(saved[-2:]) == set(names(repository.view.generations))


def test_a_manifest_that_was_exchanged_is_not_believed() -> None:
    repository, ranks = begin(MemoryStore())
    ranks.save(10)
    ranks.save(20)
    old, new = repository.view.generations
    data = repository.store.get(f"runs/r/gen/{old.name}/manifest.json")
    repository.store.put(f"runs/r/gen/{new.name}/manifest.json", data)
    with pytest.raises(Corrupt, match="is not the one that was committed"):
        repository.manifest(new)
    repository.store.delete(f"runs/r/gen/{new.name}/manifest.json")
    with pytest.raises(Corrupt, match="is gone"):
        repository.manifest(new)


def test_a_damaged_file_is_quarantined_when_it_is_read_back() -> None:
    class Flipping(MemoryStore):
        def put(self, name: str, data: Buffer) -> None:
            flipped = bytearray(data)
            flipped[-1] ^= name.endswith(".safetensors")
            super().put(name, bytes(flipped))

    repository, ranks = begin(Flipping())
    with pytest.raises(SaveFailed, match="quarantined, because rank 0 read back"):
        ranks.save(10)
    (found,) = repository.view.generations
    assert found.quarantined is not None
    assert ranks.tally.durable_step is None


def test_a_manifest_that_was_damaged_on_its_way_is_not_verified_and_the_next_save_is() -> None:
    class Flipping(MemoryStore):
        num_flips = 1

        def put(self, name: str, data: Buffer) -> None:
            flipped = bytearray(data)
            if name.endswith("manifest.json") and self.num_flips:
                self.num_flips -= 1
                flipped[len(flipped) // 2] ^= 1
            super().put(name, bytes(flipped))

    repository, ranks = begin(Flipping())
    with pytest.raises(SaveFailed, match=r"quarantined, because its manifest was read back: .*not the one"):
        ranks.save(10)
    assert ranks.tally.durable_step is None
    second = ranks.save(20)
    assert [(one.name, one.is_good) for one in repository.view.generations if one.is_good] == [(second, True)]


def test_a_manifest_that_cannot_be_read_just_now_is_not_verified_and_not_quarantined() -> None:
    class Away(MemoryStore):
        def get(self, name: str) -> bytes:
            if name.endswith("manifest.json"):
                raise Unavailable("away")
            return super().get(name)

    repository, ranks = begin(Away())
    with pytest.raises(SaveFailed, match="not verified, because its manifest can't be read: away"):
        ranks.save(10)
    (found,) = repository.view.generations
    assert (found.is_verified, found.quarantined) == (False, None)


def test_a_save_whose_manifest_no_restart_could_read_is_a_failed_save_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository, ranks = begin(MemoryStore(), world_size=2)
    first = ranks.save(10)
    with monkeypatch.context() as patch:
        for form in (manifest, pieces):
            patch.setattr(form, "MOST_MANIFEST_BYTES", 600)
        with pytest.raises(manifest.TooLargeToRead, match=r"of 2 ranks has .* a restart reads at most 600"):
            ranks.save(20)
    assert names(repository.view.generations) == [first]
    third = ranks.save(30)
    assert payload(repository.store) == {first, third}


def test_a_manifest_of_one_object_leaves_room_for_the_logs_id_and_a_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = cut_of(10, term=1, number=1, world_size=1)
    one = manifest.manifest_of(cut, [part_of(cut, 0)])
    log = "0" * 16
    most = len(manifest.encode_manifest(one, log=log)) + MAC_BYTES
    monkeypatch.setattr(manifest, "MOST_MANIFEST_BYTES", most)
    for given in (None, log):
        assert manifest.encode_manifest(one, log=given)
    monkeypatch.setattr(manifest, "MOST_MANIFEST_BYTES", most - 1)
    for given in (None, log):
        with pytest.raises(manifest.TooLargeToRead):
            manifest.encode_manifest(one, log=given)


def test_after_a_damaged_save_the_one_before_it_is_the_newest_that_is_durable() -> None:
    """Else a run's last save would count, and not be done again."""
    store = MemoryStore()
    _, ranks = begin(store)
    first = ranks.save(10)
    put = store.put

    def flip(name: str, data: Buffer) -> None:
        put(name, bytes(data)[:-1] + b"?" if name.endswith(".safetensors") else data)

    store.put = flip  # type: ignore[method-assign]  # from here on
    with pytest.raises(SaveFailed):
        ranks.save(20)
    assert (ranks.tally.durable_name, ranks.tally.durable_step) == (first, 10)


def test_what_is_pinned_in_the_moment_of_its_retirement_stays() -> None:
    store = MemoryStore()
    repository, ranks = begin(store)
    saved = [ranks.save(step) for step in (10, 20, 30)]
    tool = Repository(store, RUN)
    tool.refresh()
    tool.append(Pin(name=saved[0]))
    repository.retire(TWO, term=1)
    assert payload(store) == set(saved)
    assert load(repository, repository.view.generations[0]) == content(saved[0], 1)


def test_a_fenced_attempt_retires_nothing() -> None:
    store = MemoryStore()
    repository, ranks = begin(store)
    saved = [ranks.save(step) for step in (10, 20, 30)]
    Repository(store, RUN).take_over("later")
    with pytest.raises(Fenced):
        repository.retire(TWO, term=1)
    assert payload(store) == set(saved)


@pytest.mark.parametrize("jump_s", [-3600.0, 86_400.0])
def test_whose_clock_shows_what_decides_neither_who_may_write_nor_what_is_newest(jump_s: float) -> None:
    store, shows = MemoryStore(), [1e9]

    def clock() -> float:
        return shows[-1]

    old = Repository(store, RUN, clock=clock)
    first = Ranks(old, old.take_over("me"), retention=TWO)
    first.save(10)
    shows.append(1e9 + jump_s)
    heir = Repository(store, RUN, clock=clock)
    second = Ranks(heir, heir.take_over("me too"), retention=TWO)
    second.save(20)
    shows.append(1e9 + 1)
    with pytest.raises(Fenced):
        first.save(30)
    second.save(40)
    assert [found.step for found in heir.refresh().generations] == [20, 40]
    assert choose(heir.view).chosen == Candidate(name=heir.view.generations[-1].name, step=40, is_stored=True)


def test_a_deletion_that_failed_is_made_good_after_an_hour() -> None:
    store, now = BrokenStore(), [0.0]
    repository = Repository(store, RUN, ticks=lambda: now[0])
    ranks = Ranks(repository, repository.take_over("me"))
    saved = [ranks.save(step) for step in (10, 20, 30)]
    store.refuses = ("delete",)
    assert repository.retire(TWO, term=1) == ()
    assert list(repository.not_deleted) == [saved[0]]
    store.refuses = ()
    now[0] = 3599.0
    assert repository.retire(TWO, term=1) == ()
    now[0] = 3600.0
    assert repository.retire(TWO, term=1) == (saved[0],)
    assert payload(store) == set(saved[1:])
    assert repository.not_deleted == {}


def test_one_whose_tombstone_landed_without_an_answer_is_made_good() -> None:
    store = DeafStore()
    repository, ranks = begin(store)
    saved = [ranks.save(step) for step in (10, 20, 30)]
    store.refuses = ("create",)
    with pytest.raises(Unavailable):
        repository.retire(TWO, term=1)
    store.refuses = ()
    repository.append(Stop(), term=1)
    assert repository.retire(TWO, term=1) == (saved[0],)
    assert payload(store) == set(saved[1:])


@pytest.mark.parametrize(
    "refuses",
    ["put runs/r/gen/000000000020-t1-s2/rank-00000", "put runs/r/gen/000000000020-t1-s2/manifest"],
)
def test_what_a_failed_save_left_goes_with_the_next_one(refuses: str) -> None:
    store = BrokenStore()
    repository, ranks = begin(store, world_size=2)
    first = ranks.save(10)
    store.refuses = (refuses,)
    with pytest.raises(Unavailable):
        ranks.save(20)
    assert len(payload(store)) == 2
    store.refuses = ()
    third = ranks.save(30)
    assert payload(store) == {first, third} == set(names(repository.view.generations))


def test_a_commit_whose_answer_got_lost_is_found_and_given_up_for_a_better_one() -> None:
    store = DeafStore()
    repository, ranks = begin(store)
    store.refuses = ("create",)
    with pytest.raises(Unavailable):
        ranks.save(10)
    store.refuses = ()
    ranks.save(20)
    found = repository.view.generations
    assert [(one.step, one.is_good) for one in found] == [(20, True)]
    assert payload(store) == set(names(found))


def test_a_rank_that_says_nothing_in_time_costs_that_save_and_no_more() -> None:
    repository, ranks = begin(MemoryStore(), world_size=2)
    with pytest.raises(SaveFailed, match="rank 1: nothing written within 0 s"):
        ranks.save(10, dead=1)
    assert repository.view.generations == ()
    saved = ranks.save(20)
    assert payload(repository.store) == {saved}


def test_a_rank_that_cannot_upload_says_why() -> None:
    store = BrokenStore()
    repository, ranks = begin(store, world_size=2)
    store.refuses = ("put runs/r/gen/000000000010-t1-s1/rank-00001",)
    with pytest.raises(SaveFailed, match=r"rank 1 failed: refused: put .*rank-00001"):
        ranks.save(10)
    assert repository.view.generations == ()
    saved = ranks.save(20)
    assert payload(store) == {saved}


def test_one_that_could_not_be_read_back_yet_is_committed_but_not_good() -> None:
    store = BrokenStore()
    repository, ranks = begin(store)
    store.refuses = ("get_range",)
    with pytest.raises(SaveFailed, match="not verified"):
        ranks.save(10)
    (found,) = repository.view.generations
    assert not found.is_good
    assert found.quarantined is None


def test_garbage_is_what_earlier_terms_left_and_never_what_is_kept_or_may_be_going_on() -> None:
    store = MemoryStore()
    repository, ranks = begin(store)
    kept = ranks.save(10)
    left, going_on = cut_of(20, term=1, number=9), cut_of(20, term=2, number=1)
    repository.put_file(left.generation, file_name(0), b"left")
    repository.take_over("me again")
    repository.put_file(going_on.generation, file_name(0), b"going on")
    store.put("runs/r/gen/by-hand/file", b"")
    found = repository.garbage()
    assert found == {left.generation: [f"runs/r/gen/{left.generation}/{file_name(0)}"]}
    for name, objects in found.items():
        repository.delete_objects(name, objects)
    assert payload(store) == {kept, going_on.generation, "by-hand"}


def test_of_a_generation_the_manifest_is_deleted_first() -> None:
    deleted: list[str] = []

    class Watched(MemoryStore):
        def delete(self, name: str) -> None:
            deleted.append(name.rpartition("/")[2])
            super().delete(name)

    _, ranks = begin(Watched(), world_size=2, retention=TWO)
    for step in (10, 20, 30):
        ranks.save(step)
    assert deleted[0] == "manifest.json"
    assert {"rank-00000.safetensors", "rank-00001.safetensors"} <= set(deleted[1:])


def test_what_is_kept_cannot_be_deleted_by_mistake() -> None:
    repository, ranks = begin(MemoryStore())
    name = ranks.save(10)
    with pytest.raises(ValueError, match="is kept"):
        repository.delete_objects(name, repository.objects_of(name))
    assert repository.discard([name], term=1) == ()
    assert payload(repository.store) == {name}


def test_what_a_save_left_is_given_up_once_and_the_log_is_not_read_for_it() -> None:
    read: list[str] = []

    class Watched(BrokenStore):
        def get_range(self, name: str, start: int, into: memoryview) -> int:
            read.append(name)
            return super().get_range(name, start, into)

    store = Watched()
    _, ranks = begin(store, retention=TWO)
    for step in range(10, 400, 10):
        ranks.save(step)
    left = "000000000395-t1-aaaaaaaa"
    store.put(f"runs/{RUN}/gen/{left}/{file_name(0)}", b"x")
    later = Repository(store, RUN)
    term = later.refresh().term
    store.refuses = ("delete",)
    records = len(list(store.list(f"runs/{RUN}/log")))
    read.clear()
    for _ in range(3):
        assert later.discard([left], term=term) == ()
    assert len(read) < 5
    assert len(list(store.list(f"runs/{RUN}/log"))) == records + 1
    assert left in later.given_up()


@pytest.mark.parametrize("advice", ["retention", "unpin"])
def test_a_run_that_keeps_too_much_for_its_log_saves_again_once_it_does_what_it_is_told(
    advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpointing.log.log.MOST_RECORD_BYTES", 8192)
    repository, ranks = begin(MemoryStore(), retention=TWO if advice == "unpin" else Retention(last=1000))
    with pytest.raises(StoreError, match=r"a smaller checkpoint\.retention, or unpin some .*makes room$"):
        for step in range(10, 1000, 10):
            name = ranks.save(step)
            if advice == "unpin":
                Repository(repository.store, RUN).append(Pin(name=name))
    kept = Repository(repository.store, RUN).refresh().generations
    if advice == "unpin":
        for one in kept[:6]:
            Repository(repository.store, RUN).append(Unpin(name=one.name))
    else:
        repository, ranks = begin(repository.store, retention=TWO)
    for step in (1000, 1010, 1020):
        ranks.save(step)
    assert [one.step for one in repository.view.generations[-2:]] == [1010, 1020]
    assert kept[0].name not in names(repository.view.generations)


def test_one_that_is_named_and_has_no_room_in_the_log_is_refused_with_what_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("checkpointing.log.log.MOST_RECORD_BYTES", 8192)
    repository, ranks = begin(MemoryStore(), retention=Retention(last=1000))
    with pytest.raises(StoreError, match="makes room"):
        for step in range(10, 1000, 10):
            ranks.save(step)
    repository.refresh()
    (unnamed,) = repository.unnamed()
    with pytest.raises(StoreError, match=r"let fewer saves stay: .*makes room$"):
        Repository(repository.store, RUN).take_over("me", what=unnamed.name)
    repository, ranks = begin(repository.store, retention=TWO)
    assert names(repository.surplus.kept) == [unnamed.name]
    ranks.save(1000)
    assert Repository(repository.store, RUN).take_over("me", what=unnamed.name)
    assert Repository(repository.store, RUN).refresh().generation(unnamed.name) is not None


def test_generations_without_a_log_are_an_error_and_no_new_run() -> None:
    store = MemoryStore()
    _, ranks = begin(store)
    name = ranks.save(10)
    for record in list(store.list("runs/r/log")):
        store.delete(record)
    for _ in range(2):
        with pytest.raises(NothingToResume, match=rf"such as {name}.*--fresh"):
            Repository(store, RUN).take_over("me")
    assert Repository(store, RUN).take_over("me", fresh=True) == 2


def test_a_run_that_another_driver_began_in_this_very_moment_has_not_lost_its_log() -> None:
    class BegunMeanwhile(MemoryStore):
        """Another driver begins the run and saves after the log was found empty."""

        num_lists = 0

        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            found = [*super().list(prefix, after=after)]
            self.num_lists += prefix == "runs/r/log"
            if self.num_lists == 1 and prefix == "runs/r/log":
                begin(self)[1].save(10)
            return iter(found)

    store = BegunMeanwhile()
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 2
    assert [one.step for one in repository.view.generations] == [10]


def test_a_failed_save_that_cannot_be_given_up_now_is_given_up_with_the_next_save() -> None:
    store = BrokenStore()
    repository, ranks = begin(store, retention=TWO)
    ranks.save(10)
    store.refuses = ("create runs/r/log",)
    with pytest.raises(Unavailable):
        ranks.save(20)
    (failed,) = payload(store) - {*names(repository.view.generations)}
    number = [*repository.records()][-1].number
    # The next save commits and is verified; that it gives the failed one up is refused.
    store.refuses = (f"create runs/r/log/{number + 3:012d}",)
    ranks.save(30)
    assert failed in payload(store)
    store.refuses = ()
    ranks.save(40)
    assert failed not in payload(store)
    assert failed in repository.given_up()


def test_so_are_generations_whose_log_is_damaged_from_end_to_end() -> None:
    store = MemoryStore()
    _, ranks = begin(store)
    ranks.save(10)
    for record in list(store.list("runs/r/log")):
        store.put(record, b"damaged")
    with pytest.raises(NothingToResume):
        Repository(store, RUN).take_over("me")
    Repository(store, RUN).append(Stop())  # A tool writes to it; the loss is not forgotten.
    with pytest.raises(NothingToResume):
        Repository(store, RUN).take_over("me")


def test_an_attempt_that_ended_before_its_first_commit_is_no_obstacle() -> None:
    store = MemoryStore()
    repository, _ = begin(store)
    cut = cut_of(10, term=1, number=1)
    repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    assert Repository(store, RUN).take_over("next") == 2


def test_begun_afresh_the_former_life_is_kept_but_not_counted() -> None:
    store = MemoryStore()
    _, ranks = begin(store)
    ranks.save(10)
    repository = Repository(store, RUN)
    term = repository.take_over("me", fresh=True)
    assert (repository.view.life, repository.view.life_term, term) == (1, 2, 2)
    assert [found.life for found in repository.view.generations] == [0]


def test_a_run_that_is_new_is_no_less_so_if_begun_afresh() -> None:
    repository = Repository(MemoryStore(), RUN)
    assert repository.take_over("me", fresh=True) == 1
    assert repository.view.life == 0


@pytest.mark.parametrize("run", ["../x", "", "a/../../b", ".hidden"])
def test_no_run_lies_outside_of_the_store(run: str) -> None:
    with pytest.raises(StoreError):
        Repository(MemoryStore(), run)


def test_a_file_of_a_generation_cannot_be_put_outside_of_it() -> None:
    repository = Repository(MemoryStore(), RUN)
    with pytest.raises(StoreError):
        repository.put_file("../../other", "file", b"")
    with pytest.raises(StoreError):
        repository.put_file("g", "../../file", b"")


def test_names_of_generations_sort_by_step() -> None:
    steps = [5, 40, 300, 10**9]
    assert sorted(generation_name(step, 1, "s") for step in reversed(steps)) == [
        generation_name(step, 1, "s") for step in steps
    ]


def test_a_run_exists_once_an_attempt_of_it_has_begun() -> None:
    store = MemoryStore()
    with pytest.raises(
        NothingToResume, match=r"^memory:: there is no run 'r'; expected the name of one below"
    ):
        existing_run(store, RUN)
    _, ranks = begin(store)
    saved = ranks.save(10)
    assert [found.name for found in existing_run(store, RUN).view.generations] == [saved]
