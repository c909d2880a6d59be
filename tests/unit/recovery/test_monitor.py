"""When an attempt's driver ends it: a hang, a silent rank, a start that never comes, a lost worker."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.objects import TransferPace
from checkpointing.stores.retrying import RetryLimits
from jobs.execution.board import Assembled, Departed, Leaving, Left, Lost, Post, Raised, Ready
from jobs.execution.causes import cause_of
from jobs.execution.hang_detection import limits_of
from jobs.execution.messages import Heartbeat, SessionLimits
from jobs.execution.monitor import BrokenWay, GroupMonitor, Inquiry, did_not_meet
from jobs.training.health.postmortem import Postmortem
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Saving
from tests.unit.recovery.test_loop import task

LIMITS = SessionLimits(
    schedule_timeout_s=60, cell_timeout_s=float("inf"), patience_s={"eval": 200, "restore": 900, "save": 300}
)
SAVING = Saving(cadence=Cadence(), retention=Retention(), disk=None, disk_keep=2, deadline_s=600)
REMAINS = Postmortem(log_tail=("its last line",), signal=None, oom_kills=3)


class Watched:
    """A group of two ranks, and what is found of those that are lost or stand still."""

    def __init__(self, remains: Postmortem | None = REMAINS, nodes: tuple[str, ...] = ("a", "b")) -> None:
        self.nodes = nodes
        self.now = 0.0
        self.asked: list[str] = []
        # Asked of which nodes, and what is found of them.
        self.asked_ways: list[tuple[str, ...]] = []
        self.broken: list[tuple[str, str]] = []

        def look(node_id: str, _ready: Ready) -> Postmortem | None:
            self.asked.append(node_id)
            return remains

        def ways(node_ids: Sequence[str]) -> list[BrokenWay]:
            self.asked_ways.append(tuple(node_ids))
            return [
                BrokenWay(node_id=one, host=f"host-{one}", other_id=other, other_host=f"host-{other}")
                for one, other in self.broken
            ]

        inquiry = Inquiry(
            remains=look,
            last_lines=lambda standing: tuple(f"{node}: rank {ready.rank}" for node, ready in standing),
            unmet=did_not_meet,
            broken_ways=ways,
        )
        self.life = GroupMonitor(len(nodes), LIMITS, 0.0, inquiry)

    def hear(self, *posts: Post) -> None:
        for post in posts:
            self.life.hear(post, self.now)

    def begin(self) -> "Watched":
        self.hear(Assembled(node_ids=self.nodes))
        self.hear(*(Ready(rank=rank, logs=(), oom_kills=3) for rank in range(len(self.nodes))))
        return self

    def step(self, number: int, ranks: tuple[int, ...] = (0, 1), doing: str = "productive") -> None:
        self.hear(*(beat(rank, number, doing) for rank in ranks))

    def wait(
        self, for_s: int, number: int, ranks: tuple[int, ...] = (0, 1), doing: str = "productive"
    ) -> None:
        """Its ``ranks`` beat on without getting on."""
        for _ in range(for_s):
            self.now += 1
            self.step(number, ranks, doing)

    def verdict(self) -> Failure | None:
        return self.life.verdict(self.now)


def beat(rank: int, step: int, doing: str) -> Heartbeat:
    return Heartbeat(
        run_id="r",
        rank=rank,
        phase="window",
        step=step,
        num_steps=60,
        step_s=1.0,
        memory_bytes=0,
        doing=doing,
    )


def lost(rank: int, reason: str = "its worker process has died") -> Lost:
    return Lost(rank=rank, reason=reason, is_death=True, is_out_of_memory=False)


def echo(rank: int) -> Raised:
    closed = Failure(status="crash", reason="RuntimeError: Connection closed by peer", ranks=(rank,), step=4)
    return Raised(run_id="r", rank=rank, failure=closed)


def stepping(nodes: tuple[str, ...] = ("a", "b")) -> Watched:
    watched = Watched(nodes=nodes).begin()
    for number in range(5):
        watched.now += 1
        watched.step(number, ranks=tuple(range(len(nodes))))
    return watched


def test_steps_in_time_are_no_reason_to_end_it() -> None:
    watched = stepping()
    watched.wait(29, number=4)
    assert watched.verdict() is None


def test_no_step_for_half_a_minute_is_a_hang_and_names_the_rank_behind() -> None:
    watched = stepping()
    watched.step(5, ranks=(0,))
    watched.wait(31, number=5, ranks=(0,))
    watched.step(4, ranks=(1,))
    failure = watched.verdict()
    assert failure is not None
    assert (failure.status, failure.ranks) == ("hang", (1,))
    assert "no step for 30 s; rank 1 is furthest behind, in productive at step 4 of 60" in failure.reason
    assert cause_of(failure) == "hang"


@pytest.mark.parametrize(
    ("broken", "says", "ranks"),
    [
        ([], "furthest behind, in productive at step 4 of 60", (0, 1, 2, 3)),
        ([("b", "c")], "of 60; rank 2 on host-b does not reach rank 3 on host-c", (3,)),
        (
            [("c", "b"), ("b", "c")],
            "rank 3 on host-c does not reach rank 2 on host-b; "
            "rank 2 on host-b does not reach rank 3 on host-c",
            (3,),
        ),
        ([("a", "b"), ("c", "a")], "rank 3 on host-c does not reach rank 0 on host-a", (0, 1)),
    ],
)
def test_ranks_that_all_stand_still_are_asked_whom_they_reach(
    broken: list[tuple[str, str]], says: str, ranks: tuple[int, ...]
) -> None:
    watched = stepping(("a", "a", "b", "c"))
    watched.broken = broken
    watched.wait(31, number=4, ranks=(0, 1, 2, 3))
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason.endswith(says)
    assert failure.ranks == watched.life.held_against(failure) == ranks
    assert cause_of(failure) == ("partition" if broken else "hang")
    assert watched.asked_ways == [("a", "b", "c")]
    assert failure.log_tail[0] == f"{'aabc'[ranks[0]]}: rank {ranks[0]}"


def test_not_all_of_very_many_broken_ways_are_named() -> None:
    nodes = tuple("abcd")
    watched = stepping(nodes)
    watched.broken = [(one, other) for one in nodes for other in nodes if one != other]
    watched.wait(31, number=4, ranks=(0, 1, 2, 3))
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason.count("does not reach") == 8
    assert failure.reason.endswith(", and 4 more ways")
    assert failure.ranks == (1, 2, 3)


def test_ranks_of_one_node_are_not_asked_whom_they_reach() -> None:
    watched = stepping(("a", "a"))
    watched.wait(31, number=4)
    assert watched.verdict() is not None
    assert watched.asked_ways == []


def test_a_rank_that_is_stopped_is_silent_and_named() -> None:
    watched = stepping()
    watched.wait(31, number=4, ranks=(0,))
    failure = watched.verdict()
    assert failure is not None
    # Their node may be gone, and nobody waits for its answer.
    assert watched.asked_ways == []
    assert failure.reason.startswith("rank 1 is silent for 30 s")
    assert failure.log_tail == ("b: rank 1",)


def test_an_evaluation_has_the_time_that_it_is_allowed_and_no_more() -> None:
    watched = stepping()
    watched.wait(200, number=4, doing="eval")
    assert watched.verdict() is None
    watched.wait(2, number=4, doing="eval")
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason.startswith("no step for 200 s")


def test_a_rank_that_evaluates_holds_up_those_that_wait_for_it() -> None:
    watched = stepping()
    for _ in range(100):
        watched.now += 1
        watched.step(4, ranks=(0,), doing="eval")
        watched.step(4, ranks=(1,), doing="stall")
    assert watched.verdict() is None


def test_ranks_that_never_meet_are_named() -> None:
    watched = Watched()
    watched.hear(Assembled(node_ids=("a", "b")), Ready(rank=0, logs=(), oom_kills=0))
    watched.now = 301
    failure = watched.verdict()
    assert failure is not None
    assert (failure.status, failure.ranks) == ("hang", (1,))
    assert failure.reason == "rank 1 did not meet the others within 300 s"


def test_what_is_not_placed_yet_is_for_ray_to_give_up_but_not_for_ever() -> None:
    watched = Watched()
    watched.now = LIMITS.schedule_timeout_s + 300
    assert watched.verdict() is None
    watched.now += 1
    failure = watched.verdict()
    assert failure is not None
    assert (failure.status, failure.ranks) == ("hang", (0, 1))
    assert failure.reason == "ranks 0, 1 did not meet the others within 360 s"


def test_ranks_that_are_done_and_whose_group_does_not_end_are_ended() -> None:
    watched = stepping()
    watched.hear(Departed(rank=0))
    watched.wait(20, 5, ranks=(1,))
    watched.hear(Departed(rank=1))
    watched.now += 300
    assert watched.verdict() is None
    watched.now += 1
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason == "all ranks are done, and their worker group did not end within 300 s"


def test_a_lost_worker_counts_before_what_its_peer_saw_and_tells_where_it_was() -> None:
    watched = stepping()
    watched.hear(echo(0), lost(1))
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason == "its worker process has died: without a word in its log, as SIGKILL leaves it"
    assert (failure.ranks, failure.log_tail) == ((1,), ("its last line",))
    assert watched.life.with_step(failure).step == 4
    assert watched.asked == ["b"]


def test_what_a_rank_says_of_a_peer_counts_against_the_silent_peer() -> None:
    """The news of a worker's death may come later than what the others raise."""
    watched = Watched().begin()
    watched.hear(echo(1))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert failure.ranks == (1,)
    assert watched.life.held_against(failure) == (0,)


def test_what_a_rank_says_of_itself_counts_against_it() -> None:
    watched = Watched().begin()
    watched.hear(Raised(run_id="r", rank=1, failure=Failure(status="crash", reason="KeyError", ranks=(1,))))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == (1,)


@pytest.mark.parametrize(
    "reason",
    [
        "ConnectionError: ('Connection aborted.', RemoteDisconnected())",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "DistBackendError: NCCL error: unhandled system error, ncclSystemError: System call failed",
    ],
)
def test_a_connection_that_may_be_ones_own_counts_against_nobody(reason: str) -> None:
    watched = Watched().begin()
    watched.hear(Raised(run_id="r", rank=1, failure=Failure(status="crash", reason=reason, ranks=(1,))))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == ()


def test_a_lost_rank_is_held_responsible_whatever_words_its_loss_has() -> None:
    watched = Watched(None).begin()
    watched.hear(lost(1, "ActorUnavailableError: RpcError: Connection refused"))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == (1,)


def test_what_all_ranks_say_of_each_other_counts_against_nobody() -> None:
    watched = Watched().begin()
    watched.hear(echo(0), echo(1))

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == ()


def test_what_a_rank_says_of_a_peer_counts_against_nobody_where_the_peer_may_be_on_several_nodes() -> None:
    watched = Watched(nodes=("a", "b", "c")).begin()
    watched.hear(echo(1))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == ()


def test_a_node_that_is_gone_is_not_asked_what_a_rank_left_on_it() -> None:
    watched = stepping()
    watched.hear(lost(1, "its node is not reached any more"))
    watched.now += 3
    failure = watched.verdict()
    assert failure is not None
    assert (failure.reason, failure.log_tail, watched.asked) == ("its node is not reached any more", (), [])


def test_nobody_asks_what_a_rank_left_that_has_told_its_own_end() -> None:
    """Ray tells each error that a rank raises once more, and an answer from its node takes a second."""
    watched = stepping()
    watched.hear(Raised(run_id="r", rank=1, failure=Failure(status="crash", reason="KeyError", ranks=(1,))))
    watched.hear(replace(lost(1, "KeyError"), is_death=False))
    watched.now += 3
    failure = watched.verdict()
    assert failure is not None
    assert (failure.reason, watched.asked) == ("KeyError", [])


def test_a_kernel_that_ended_a_process_for_want_of_memory_is_out_of_memory() -> None:
    watched = Watched(replace(REMAINS, oom_kills=4)).begin()
    watched.hear(lost(1))
    watched.now = 3
    failure = watched.verdict()
    assert failure is not None
    assert cause_of(failure, watched.life.lost[1]) == "out of memory"


def test_a_worker_that_ends_itself_by_a_signal_is_an_error_of_the_training() -> None:
    watched = Watched(replace(REMAINS, signal="SIGSEGV")).begin()
    watched.hear(lost(1))
    watched.now = 3
    failure = watched.verdict()
    assert failure is not None
    assert cause_of(failure, watched.life.lost[1]) == "error"


def test_ranks_that_are_done_are_silent_for_good_reason() -> None:
    watched = stepping()
    watched.hear(Departed(rank=1), Departed(rank=0))
    watched.now += 100
    assert watched.verdict() is None


def test_a_rank_that_is_done_before_the_others_is_silent_for_good_reason() -> None:
    watched = stepping()
    watched.hear(Departed(rank=1))
    # The board hands out beats behind everything else.
    watched.step(4, ranks=(1,))
    watched.wait(100, number=4, ranks=(0,), doing="save")
    assert watched.verdict() is None


def test_one_that_is_not_done_is_still_heard_or_hangs() -> None:
    watched = stepping()
    watched.hear(Departed(rank=1))
    watched.now += 31
    failure = watched.verdict()
    assert failure is not None
    assert failure.reason.startswith("rank 0 is silent for 30 s, in productive at step 4 of 60")


def test_the_end_has_time_for_all_its_saves_and_then_for_a_store_that_is_away() -> None:
    deadline_s = 10.0
    ending = replace(task(1, MemoryStore()), saving=replace(SAVING, deadline_s=deadline_s))
    limits = limits_of(ending, schedule_timeout_s=60, hang_timeout_s=30)
    assert limits.patience_s["last save"] >= 6 * deadline_s + RetryLimits().budget_s


def test_a_store_of_samples_that_stands_still_is_given_up_by_who_reads_it_before_that_is_a_hang() -> None:
    limits = limits_of(task(1, MemoryStore()), schedule_timeout_s=60, hang_timeout_s=30)
    # The first call stands still before its failure counts, and so may the one that is begun last.
    assert limits.patience_s["data wait"] > RetryLimits().budget_s + 2 * TransferPace().stall_s


@pytest.mark.parametrize("deadline_s", [None, 1.0, 600.0, 7200.0])
def test_the_driver_loses_patience_before_ranks_that_wait_for_each_other_do(deadline_s: float | None) -> None:
    saving = replace(SAVING, deadline_s=deadline_s) if deadline_s else None
    attempt = replace(task(1, MemoryStore()), saving=saving)
    limits = limits_of(attempt, schedule_timeout_s=60, hang_timeout_s=30)
    assert attempt.longest_wait_s > max(limits.patience_s.values())


def test_how_long_its_steps_still_take_is_known_from_the_first_one_on() -> None:
    watched = Watched().begin()
    assert watched.life.left_s(num_steps=101) == inf
    watched.hear(replace(beat(0, 40, "productive"), step_s=0.0))
    assert watched.life.left_s(num_steps=101) == inf
    watched.hear(*(replace(beat(rank, 41 - rank, "productive"), step_s=0.5) for rank in (0, 1)))
    assert watched.life.left_s(num_steps=101) == 30


def test_who_leaves_a_last_state_after_a_loss_has_the_time_that_it_needs() -> None:
    watched = stepping()
    watched.hear(lost(0), Leaving(rank=1, seconds=30.0))
    watched.now += 20
    assert watched.verdict() is None

    watched.hear(Left(rank=1))

    found = watched.verdict()
    assert found is not None
    assert found.ranks == (0,)


def test_who_would_leave_for_ever_is_ended() -> None:
    watched = stepping()
    watched.hear(lost(0), Leaving(rank=1, seconds=1e9))
    watched.now += 599
    assert watched.verdict() is None
    watched.now += 2
    assert watched.verdict() is not None


def test_after_the_grace_for_a_loss_nobody_has_another_one() -> None:
    watched = stepping()
    watched.hear(echo(1))
    watched.now += 3
    found = watched.verdict()
    assert found is not None
    assert watched.life.have_left(found, watched.now, watched.now)


def test_before_a_hang_is_ended_those_that_wait_leave_their_last_state() -> None:
    watched = stepping()
    watched.wait(31, 5, ranks=(1,))
    found = watched.verdict()
    assert found is not None
    assert found.ranks == (0,)
    assert not watched.life.have_left(found, watched.now, watched.now + 0.5)

    watched.hear(Left(rank=1))

    assert watched.life.have_left(found, watched.now, watched.now + 0.5)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 500.0])
def test_who_says_again_and_again_how_long_it_takes_is_ended_too(seconds: float) -> None:
    watched = stepping()
    watched.hear(lost(0))
    for _ in range(3):
        watched.hear(Leaving(rank=1, seconds=seconds))
        watched.now += 300
    assert watched.verdict() is not None


def test_a_rank_that_has_left_its_last_state_is_not_taken_for_the_one_that_is_gone() -> None:
    watched = Watched(nodes=("a", "b", "c")).begin()
    watched.hear(echo(1), Left(rank=2))
    watched.now = 10

    failure = watched.verdict()

    assert failure is not None
    assert watched.life.held_against(failure) == (0,)
