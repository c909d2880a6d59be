"""What the attempts of one start begin with: what was asked for counts until they have saved themselves."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from checkpointing.errors import Fenced, NothingToResume
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import signed
from checkpointing.log.history import Commit, Entry, Fresh, Lease
from checkpointing.log.signing import VARIABLE, StoreKeyError
from checkpointing.stores.contract import Buffer, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import Occupied
from jobs.execution.outcomes import Cancelled, Outcome, StoreAway, Unmendable, outcome_of
from jobs.recovery.policy import Policy
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.tasks import Beginning, Tasks, beginning
from jobs.training.data.shard_ledger import LedgerWriter
from jobs.training.task.task import Mixture, Origin, Task, Tokens, WeightedTokens
from jobs.training.task.token_index import KnownShard, TokenIndex, TokenShard
from jobs.training.task.windows import cut_into_windows
from tests.unit.builders import group
from tests.unit.generations.test_log import DeafStore
from tests.unit.recovery.test_loop import (
    DONE,
    STOP,
    Driver,
    Forgiving,
    done,
    failing,
    recovery,
    spec,
    spoilt,
    stopped,
)
from tests.unit.small_generations import RUN, Ranks, generation, good, view_of


def asked(what: str = "best", *, fresh: bool = False, term: int = 2) -> Beginning:
    return Beginning(origin=None, what=what, fresh=fresh, term=term)


LEASE = Lease(owner="driver")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([LEASE], True),
        ([LEASE, LEASE], True),
        ([LEASE, LEASE, Fresh()], False),
        ([LEASE, LEASE, LEASE, Fresh()], False),
        ([LEASE, LEASE, Fresh(), LEASE], False),
    ],
)
def test_a_fresh_start_is_fresh_until_its_new_life_has_begun(entries: list[Entry], expected: bool) -> None:
    view = view_of(*entries)
    assert asked(fresh=True).is_fresh(view) is expected
    assert asked(fresh=False).is_fresh(view) is False


def test_the_first_life_of_all_begins_with_its_first_lease() -> None:
    assert asked(fresh=True, term=1).is_fresh(view_of()) is True
    assert asked(fresh=True, term=1).is_fresh(view_of(LEASE)) is False


class AwayOnce(MemoryStore):
    """For the first record that says ``Fresh``, which has landed or not."""

    def __init__(self, *, has_landed: bool) -> None:
        super().__init__()
        self._has_landed = has_landed
        self._is_over = False

    def create(self, name: str, data: Buffer) -> None:
        is_now = not self._is_over and b'"kind":"fresh"' in bytes(data)
        if self._has_landed or not is_now:
            super().create(name, data)
        if is_now:
            self._is_over = True
            raise Unavailable("memory: away")


def test_what_was_asked_for_is_gone_on_from_until_an_attempt_of_this_start_has_saved() -> None:
    assert asked("step:10").resume(view_of(*good(1, term=1))) == "step:10"
    assert asked("step:10").resume(view_of(*good(1, term=1), *good(2, term=2))) == "latest"
    assert asked("step:10").resume(view_of(*good(1, term=1), *good(2, term=5))) == "latest"
    spoilt_since = view_of(*good(1, term=1), *good(2, term=2, quarantined="spoilt"))
    assert asked("step:10").resume(spoilt_since) == "step:10"


@dataclass
class Start:
    """One driver of the run: it begins attempts as it does, and none of them trains."""

    store: MemoryStore = field(default_factory=MemoryStore)
    fresh: bool = False
    resume: str = "latest"
    tokens: Tokens | Mixture | None = None
    listens: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        self.repository = Repository(self.store, RUN)
        begins = beginning(self.resume, self.repository, spec(), fresh=self.fresh)
        pause = self.listens or (lambda _: None)
        presence = DriverPresence(self.store, RUN, is_wanted=self.listens is not None, pause=pause)
        self.tasks = Tasks(spec(), self.repository, begins, self.tokens, presence)

    def begin(self) -> int:
        return self.tasks.make(group(), 1, 0.0).term

    def begin_with_tokens(self) -> tuple[Task, Tokens]:
        task = self.tasks.make(group(), 1, 0.0)
        assert task.tokens is not None
        return task, task.tokens


TOKENS = Tokens(
    url="memory:/",
    index=TokenIndex(dtype="uint16", shards=(TokenShard(name="a.bin", num_tokens=1000),)),
    windows=cut_into_windows(1000, seq_len=4, num_held_out=0),
)


def test_an_attempt_knows_what_the_attempts_of_its_life_found_out_about_shards() -> None:
    store, seen = MemoryStore(), KnownShard(name="a.bin", sha256="a" * 64, versions=("1",))
    for is_fresh, expected in ((False, ()), (False, (seen,)), (True, ()), (False, (seen,))):
        start = Start(store=store, tokens=TOKENS, fresh=is_fresh)
        task, tokens = start.begin_with_tokens()
        assert tokens.known == expected
        assert tokens.ledger is not None
        LedgerWriter(store, tokens.ledger, term=task.term, rank=0).write([seen])
    assert start.begin_with_tokens()[1].known == (seen,)


def test_sources_of_a_mixture_whose_shards_have_the_same_names_are_known_apart() -> None:
    store = MemoryStore()
    names = ("web", "code")
    mixture = Mixture(sources=tuple(WeightedTokens(name=name, weight=1, tokens=TOKENS) for name in names))
    first = Start(store=store, tokens=mixture).tasks.make(group(), 1, 0.0)
    for one, sha256 in zip(first.places, ("a" * 64, "b" * 64), strict=True):
        assert one.known == () and one.ledger is not None
        seen = KnownShard(name="a.bin", sha256=sha256, versions=("1",))
        LedgerWriter(store, one.ledger, term=first.term, rank=0).write([seen])
    again = Start(store=store, tokens=mixture).tasks.make(group(), 1, 0.0)
    assert [shard.sha256[0] for one in again.places for shard in one.known] == ["a", "b"]


def another_takes_over(store: MemoryStore) -> None:
    Repository(store, RUN).take_over("another")


def test_who_was_taken_over_while_it_paused_does_not_take_the_run_back() -> None:
    start, ends = Start(), iter([failing("worker died"), done])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        try:
            start.begin()
        except Fenced as error:
            return outcome_of(error)
        return next(ends)()

    run = recovery(start.repository, policy=Policy(), pause=lambda _: another_takes_over(start.store))
    end = run.work(attempt)
    assert isinstance(end, Unmendable) and isinstance(end.error, Fenced)
    assert str(end.error).startswith("a later attempt has taken r over")
    assert start.repository.refresh().owner == "another"


def test_who_did_not_hear_of_its_lease_takes_no_other_one_from_who_came_after_it() -> None:
    start = Start(store=DeafStore(1))
    with pytest.raises(Unavailable):
        start.begin()
    another_takes_over(start.store)
    with pytest.raises(Fenced):
        start.begin()


def test_a_lease_of_its_own_whose_answer_got_lost_keeps_no_driver_from_another() -> None:
    start = Start(store=DeafStore(2))
    assert start.begin() == 1
    with pytest.raises(Unavailable):
        start.begin()
    assert start.begin() == 3


def test_the_first_attempt_of_a_start_takes_over_whoever_came_meanwhile_and_is_silent() -> None:
    paused: list[float] = []
    start = Start(listens=paused.append)
    another_takes_over(start.store)
    assert start.begin() == 2
    assert len(paused) == 10


def test_whoever_came_meanwhile_and_speaks_is_left_alone() -> None:
    """Also where its first word comes after its lease."""
    words = count()

    def is_main_process(_for_s: float) -> None:
        told = {"stage": "starting", "has_lease": True, "told_s": next(words)}
        start.store.put(f"runs/{RUN}/status.json", json.dumps(told).encode())

    start = Start(listens=is_main_process)
    another_takes_over(start.store)
    with pytest.raises(Occupied, match="another driver is at work"):
        start.begin()


@pytest.mark.parametrize(("has_landed", "life_term"), [(False, 3), (True, 2)])
def test_a_store_that_goes_away_between_lease_and_new_life_makes_no_fresh_start_go_on_with_the_old_one(
    has_landed: bool, life_term: int
) -> None:
    store = AwayOnce(has_landed=has_landed)
    former = Driver(store=store, in_pause=stopped)
    assert former.drive(spoilt(5, 4, (32, 40))) == Cancelled(stop_request=STOP)
    start = Start(store=store, fresh=True)
    run = recovery(start.repository, policy=Policy())
    with pytest.raises(Unavailable):
        start.tasks.make(group(), 1, 0.0)
    tasks = [run.begin(start.tasks.make(group(), 1, 0.0)) for _ in range(2)]
    assert [(task.term, task.skips) for task in tasks] == [(3, ()), (4, ())]
    view = start.repository.refresh()
    assert (view.life, view.life_term) == (1, life_term)


@pytest.mark.parametrize("num_refusals", [0, 1, 2])
def test_what_was_asked_for_is_gone_on_from_again_where_all_that_came_of_it_is_spoilt(
    num_refusals: int,
) -> None:
    store = Forgiving(num_refusals)
    former = Driver(store=store)
    former.begin()
    former.save(100, 200, 300)
    start, tasks = Start(store=store, resume="step:100"), list[Task]()
    ends = iter([spoilt(160, 140, (1, 2)), done])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        try:
            tasks.append(run.begin(start.tasks.make(group(), 1, 0.0)))
        except Unavailable as error:
            return StoreAway(reason=str(error))
        start.repository.append(Commit(generation=generation(15, term=tasks[-1].term)), term=tasks[-1].term)
        return next(ends)()

    run = recovery(start.repository, policy=Policy())
    assert run.work(attempt) == DONE
    assert [task.resume for task in tasks] == ["step:100", "step:100"]


def test_another_run_to_begin_from_is_there_or_is_named(tmp_path: Path) -> None:
    asked_for = f"{tmp_path}/runs/nobody"
    with pytest.raises(NothingToResume) as refused:
        beginning(asked_for, Repository(MemoryStore(), RUN), spec(), fresh=False)
    assert str(refused.value) == f"--resume {asked_for}: there is no run 'nobody' in {tmp_path}"
    Repository(LocalStore(tmp_path), "nobody").take_over("me")
    found = beginning(asked_for, Repository(MemoryStore(), RUN), spec(), fresh=False)
    assert found.origin == Origin(store=str(tmp_path), run="nobody")


def test_what_is_evaluated_on_is_known_apart_from_what_is_trained_on() -> None:
    store, seen = MemoryStore(), KnownShard(name="a.bin", sha256="a" * 64, versions=("1",))
    mixture = Mixture(sources=(WeightedTokens(name="web", weight=1, tokens=TOKENS),), held_out=TOKENS)
    for tokens, known in ((replace(TOKENS, held_out=TOKENS), ()), (mixture, (seen,))):
        task = Start(store=store, tokens=tokens).tasks.make(group(), 1, 0.0)
        assert task.held_out is not None and task.held_out.ledger is not None
        assert task.held_out.ledger not in {one.ledger for one in task.places}
        assert task.held_out.known == known
        LedgerWriter(store, task.held_out.ledger, term=task.term, rank=0).write([seen])


def with_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes = b"k" * 32) -> None:
    path = tmp_path / f"key-{key.hex()[:2]}"
    path.write_bytes(key)
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))


def another_run(tmp_path: Path) -> tuple[str, str]:
    """The place of a run that saved, and the name of its one generation."""
    repository = Repository(LocalStore(tmp_path / "theirs"), "another")
    ranks = Ranks(repository, repository.take_over("them"))
    return f"{tmp_path}/theirs/runs/another", ranks.save(10)


def begun(resume: str) -> Origin | None:
    return beginning(resume, Repository(MemoryStore(), RUN), spec(), fresh=False).origin


def test_with_a_key_no_run_begins_from_the_newest_checkpoint_of_a_log_that_nobody_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = another_run(tmp_path)
    theirs = f"{tmp_path}/theirs"
    assert begun(place) == Origin(store=theirs, run="another")
    with_key(tmp_path, monkeypatch)
    for resume in (place, f"{place}/", f"{place}/gen/best", f"{place}/gen/step:10"):
        with pytest.raises(StoreKeyError, match=r"none of its records is signed.*\(`longhaul.*`") as no:
            begun(resume)
        assert "\n" not in str(no.value)
        assert f"--resume {place}/gen/NAME" in str(no.value)
    assert begun(f"{place}/gen/{name}") == Origin(store=theirs, run="another", what=name)


def test_a_run_that_has_saved_goes_on_by_the_same_command_whatever_became_of_the_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm and supervisors repeat it."""
    place, _ = another_run(tmp_path)
    with_key(tmp_path, monkeypatch)
    repository = Repository(MemoryStore(), RUN)
    Ranks(repository, repository.take_over("us")).save(500)

    def refused(resume: str, *, fresh: bool = False) -> bool:
        try:
            origin = beginning(resume, repository, spec(), fresh=fresh).origin
        except (StoreKeyError, NothingToResume):
            return True
        assert origin is not None and origin.run == "another"
        return False

    for resume in (place, f"{place}/gen/000000000099-t1-a"):
        assert not refused(resume)
        assert refused(resume, fresh=True)
    repository.take_over("us", fresh=True)
    assert refused(place)


def test_a_forged_signature_makes_no_log_of_another_run_one_to_begin_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = another_run(tmp_path)
    store = LocalStore(tmp_path / "theirs")
    newest = max(store.list("runs/another/log"))
    store.put(newest, signed(bytes(store.get(newest)), "f" * 64))
    with_key(tmp_path, monkeypatch)
    with pytest.raises(StoreKeyError, match="none of its records is signed"):
        begun(place)


def test_with_a_key_a_run_begins_from_another_that_it_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    place, _ = another_run(tmp_path)
    assert begun(place) == Origin(store=f"{tmp_path}/theirs", run="another")
    with_key(tmp_path, monkeypatch, b"x" * 32)
    with pytest.raises(StoreKeyError, match="no record was signed with the key"):
        begun(place)


def test_a_checkpoint_of_another_run_that_is_named_is_there_or_is_named_in_the_refusal(
    tmp_path: Path,
) -> None:
    place, name = another_run(tmp_path)
    assert begun(f"{place}/gen/step:10") == Origin(store=f"{tmp_path}/theirs", run="another", what="step:10")
    with pytest.raises(NothingToResume, match=rf"'000000000099-t1-a' is none of .*{name}"):
        begun(f"{place}/gen/000000000099-t1-a")
