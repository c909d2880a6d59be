"""What the driver makes of a worker group's posts: no Ray, no workers, a clock that is told the time."""

from dataclasses import replace

from jobs.execution.board import Assembled, Board, Done, Lost, Measured, Post, Raised, Ready, Searching
from jobs.execution.messages import Event, Finished, Heartbeat, SessionLimits, Started
from jobs.execution.monitor import START_TIMEOUT_S, GroupMonitor, Inquiry, did_not_join
from jobs.execution.rank_failures import GRACE_S, one_failure
from jobs.execution.session_jobs import END_TIMEOUT_S, SessionJobs
from jobs.training.health.postmortem import Postmortem
from jobs.training.task.job import Job, Window
from jobs.training.task.measurement import Failure, Measurement, NoProfile
from jobs.training.task.search.largest_batch import BatchSearch
from tests.unit.builders import measurement, run_of, sweep

LIMITS = SessionLimits(schedule_timeout_s=60, cell_timeout_s=600, hang_timeout_s=30)
OUT_OF_MEMORY = Failure(status="oom", reason="too much", phase="warmup", ranks=(0,))
CLOSED = Failure(status="crash", reason="RuntimeError: connection closed by peer", phase="window", ranks=(0,))


def jobs(*run_ids: str) -> tuple[Job, ...]:
    """Of world size 2."""
    recipe = replace(run_of(sweep()).cell.recipe, world_size=2)
    window = Window(steps=9, warmup=1)
    return tuple(Job(run_id=run_id, recipe=recipe, window=window, vendor="cpu") for run_id in run_ids)


class Group:
    """A worker group at work on ``a`` and ``b``; the log of a dead worker says ``remains``."""

    def __init__(self, remains: Postmortem | None = None) -> None:
        inquiry = Inquiry(
            remains=lambda _node_id, _ready: remains,
            last_lines=lambda _standing: remains.log_tail if remains else (),
            unmet=did_not_join,
            broken_ways=lambda _node_ids: (),
        )
        self.life = SessionJobs(jobs("a", "b"), GroupMonitor(2, LIMITS, 0, inquiry))
        self.events: list[Event] = []

    def hear(self, *posts: Post, now: float = 1) -> None:
        for post in posts:
            self.events += self.life.hear(post, now)

    def judge(self, now: float) -> None:
        self.events += self.life.judge(now)

    def start(self) -> None:
        ready = [Ready(rank=rank, logs=(), oom_kills=7) for rank in (0, 1)]
        self.hear(Assembled(node_ids=("n", "n")), *ready, Started(run_id="a"))

    def outcomes(self) -> dict[str, str]:
        """Status by run."""
        finished = [event for event in self.events if isinstance(event, Finished)]
        return {end.run_id: getattr(end.outcome, "status", "ok") for end in finished}

    def failure(self) -> Failure:
        (outcome,) = [event.outcome for event in self.events if isinstance(event, Finished)]
        assert isinstance(outcome, Failure)
        return outcome

    @property
    def left(self) -> list[str]:
        return [job.run_id for job in self.life.left]


def beat(rank: int, run_id: str = "a") -> Heartbeat:
    return Heartbeat(
        run_id=run_id, rank=rank, phase="window", step=3, num_steps=9, step_s=0.1, memory_bytes=0
    )


def lost(rank: int, *, is_out_of_memory: bool = False) -> Lost:
    return Lost(rank=rank, reason="it died", is_death=True, is_out_of_memory=is_out_of_memory)


def remains(*, signal: str | None = None, oom_kills: int = 7) -> Postmortem:
    return Postmortem(log_tail=("last words",), signal=signal, oom_kills=oom_kills)


def test_results_end_one_job_after_the_other() -> None:
    running = Group()
    running.start()
    running.hear(beat(0), Done(measurement=measurement(run_id="a")), beat(0, "a"), beat(1, "b"))
    running.hear(Done(measurement=measurement(run_id="b")))
    assert running.outcomes() == {"a": "ok", "b": "ok"}
    assert [event for event in running.events if isinstance(event, Heartbeat)] == [beat(0), beat(1, "b")]
    assert running.left == []


def test_ranks_that_wait_for_the_others_are_not_said_to_be_at_work() -> None:
    running = Group()
    running.hear(Assembled(node_ids=("n", "n")), Ready(rank=0, logs=(), oom_kills=0), beat(0))
    assert running.events == []
    running.hear(Ready(rank=1, logs=(), oom_kills=0), beat(0))
    assert running.events == [beat(0)]


def test_a_group_that_does_not_go_after_its_last_result_is_ended() -> None:
    running = Group()
    running.start()
    running.hear(Done(measurement=measurement(run_id="a")), Done(measurement=measurement(run_id="b")))
    running.judge(now=END_TIMEOUT_S)
    assert not running.life.is_condemned
    running.judge(now=END_TIMEOUT_S + 2)
    assert running.life.is_condemned


def test_what_all_ranks_raise_is_told_at_once_and_the_next_job_stays() -> None:
    running = Group()
    running.start()
    invalid = Failure(status="invalid_loss", reason="nan", phase="window")
    for rank in (0, 1):
        running.hear(Raised(run_id="a", rank=rank, failure=replace(invalid, ranks=(rank,))))
    running.judge(now=1)
    assert running.failure() == replace(invalid, ranks=(0, 1), nodes=("n",))
    assert running.life.is_condemned
    assert running.left == ["b"]


def test_one_ranks_trouble_waits_for_its_cause() -> None:
    running = Group(remains(signal="SIGSEGV"))
    running.start()
    running.hear(Raised(run_id="a", rank=0, failure=CLOSED))
    running.judge(now=1 + GRACE_S / 2)
    assert running.outcomes() == {}
    running.hear(lost(1), now=1 + GRACE_S / 2)
    running.judge(now=1 + GRACE_S / 2)
    failure = running.failure()
    assert (failure.reason, failure.ranks, failure.log_tail) == ("it died: SIGSEGV", (1,), ("last words",))


def test_one_ranks_trouble_is_told_alone_after_its_grace() -> None:
    running = Group()
    running.start()
    running.hear(Raised(run_id="a", rank=0, failure=CLOSED))
    running.judge(now=1 + GRACE_S + 0.1)
    assert running.failure() == replace(CLOSED, nodes=("n",))


def test_a_death_without_a_word_says_so() -> None:
    running = Group(remains())
    running.start()
    running.hear(lost(1))
    running.judge(now=1 + GRACE_S + 0.1)
    assert running.failure().reason == "it died: without a word in its log, as SIGKILL leaves it"


def test_a_death_is_out_of_memory_if_ray_or_the_kernel_says_so() -> None:
    by_ray, by_kernel, by_neither = Group(remains()), Group(remains(oom_kills=8)), Group(remains())
    for running, is_out_of_memory in ((by_ray, True), (by_kernel, False), (by_neither, False)):
        running.start()
        running.hear(lost(1, is_out_of_memory=is_out_of_memory))
        running.judge(now=1 + GRACE_S + 0.1)
    statuses = [running.failure().status for running in (by_ray, by_kernel, by_neither)]
    assert statuses == ["oom", "oom", "crash"]


def test_a_hang_brings_the_last_lines_of_the_rank_that_hangs() -> None:
    running = Group(remains())
    running.start()
    running.hear(beat(0), beat(1))
    running.hear(beat(0), now=31)
    running.judge(now=31.5)
    failure = running.failure()
    assert (failure.status, failure.ranks, failure.log_tail) == ("hang", (1,), ("last words",))


def test_each_job_has_its_own_time() -> None:
    running = Group()
    running.start()
    running.hear(beat(0), beat(1), Done(measurement=measurement(run_id="a")), now=590)
    running.judge(now=610)
    assert running.outcomes() == {"a": "ok"}


def test_a_rank_that_breaks_around_its_jobs_result_takes_only_the_group_along() -> None:
    result, trouble = Done(measurement=measurement(run_id="a")), Raised(run_id="a", rank=1, failure=CLOSED)
    for posts in ((result, trouble), (trouble, result)):
        running = Group()
        running.start()
        running.hear(*posts)
        running.judge(now=1 + GRACE_S + 0.1)
        assert running.outcomes() == {"a": "ok"}
        assert running.life.is_condemned
        assert running.left == ["b"]


def profile_of_a(group: Group) -> object:
    (outcome,) = [event.outcome for event in group.events if isinstance(event, Finished)]
    assert isinstance(outcome, Measurement) and outcome.run_id == "a"
    return outcome.profile


def test_a_job_that_fails_while_it_is_profiled_keeps_its_numbers_and_ends_the_group() -> None:
    running = Group()
    running.start()
    running.hear(Measured(measurement=measurement(run_id="a")))
    running.hear(Raised(run_id="a", rank=0, failure=CLOSED), Raised(run_id="a", rank=1, failure=CLOSED))
    running.judge(now=2)
    assert profile_of_a(running) == NoProfile(reason="crash: RuntimeError: connection closed by peer")
    assert running.life.is_condemned
    assert running.left == ["b"]


def test_a_job_that_hangs_while_it_is_profiled_or_whose_group_is_gone_keeps_its_numbers() -> None:
    hanging, gone = Group(), Group()
    for running in (hanging, gone):
        running.start()
        beats = [replace(beat(rank), phase="profile") for rank in (0, 1)]
        running.hear(Measured(measurement=measurement(run_id="a")), *beats)
    hanging.judge(now=600)
    gone.events += gone.life.end("gone", now=5)
    found = profile_of_a(hanging)
    assert isinstance(found, NoProfile) and found.reason.startswith("hang: ranks 0, 1 are silent for 30 s")
    assert profile_of_a(gone) == NoProfile(reason="crash: gone")


def test_the_numbers_of_one_job_are_never_those_of_the_next() -> None:
    running = Group()
    running.start()
    running.hear(Measured(measurement=measurement(run_id="a")), Done(measurement=measurement(run_id="a")))
    running.events += running.life.end("gone", now=5)
    assert running.outcomes() == {"a": "ok", "b": "crash"}


def test_a_search_goes_on_in_another_group_with_what_ran_out() -> None:
    running = Group()
    running.start()
    search = BatchSearch(sequences=8, candidates=(1, 2, 4, 8), guess=4)
    running.hear(Searching(run_id="a", search=search.now_trying(4)))
    for rank in (0, 1):
        running.hear(Raised(run_id="a", rank=rank, failure=OUT_OF_MEMORY))
    running.judge(now=1)
    assert (running.outcomes(), running.life.is_condemned, running.left) == ({}, True, ["a", "b"])
    assert running.life.left[0].search == search.now_trying(4).ran_out()


def test_a_worker_that_the_kernel_ended_in_a_search_is_a_trial_that_ran_out() -> None:
    running = Group(remains(oom_kills=8))
    running.start()
    search = BatchSearch(sequences=8, candidates=(1, 2, 4, 8), guess=4)
    running.hear(Searching(run_id="a", search=search.now_trying(4)), lost(1))
    running.judge(now=1 + GRACE_S + 0.1)
    assert (running.outcomes(), running.left) == ({}, ["a", "b"])


def test_a_search_ends_with_a_row_where_nothing_fits_or_something_else_goes_wrong() -> None:
    last = BatchSearch(sequences=8, candidates=(1, 2), guess=1).now_trying(1)
    for failure, failed in ((OUT_OF_MEMORY, (1,)), (CLOSED, ())):
        running = Group()
        running.start()
        running.hear(Searching(run_id="a", search=last), Raised(run_id="a", rank=0, failure=failure))
        running.judge(now=1 + GRACE_S + 0.1)
        assert running.outcomes() == {"a": failure.status}
        search = running.failure().search
        assert search is not None
        assert (search.failed, running.left) == (failed, ["b"])


def test_workers_that_do_not_meet_are_named() -> None:
    running = Group()
    running.hear(Assembled(node_ids=("n", "n")), Ready(rank=0, logs=(), oom_kills=0))
    running.judge(now=1 + START_TIMEOUT_S)
    assert running.outcomes() == {}
    running.judge(now=2 + START_TIMEOUT_S)
    assert (running.failure().status, running.failure().ranks) == ("crash", (1,))
    assert running.failure().reason == "ranks [1] did not join their process group within 300 s"


def test_a_group_that_ends_too_early_fails_only_its_current_job() -> None:
    running = Group()
    running.start()
    running.events += running.life.end("gone", now=5)
    assert running.failure() == Failure(status="crash", reason="gone", nodes=("n",))
    assert running.left == ["b"]


def test_a_group_that_was_never_placed_fails_all_jobs() -> None:
    running = Group()
    running.events += running.life.refuse(Failure(status="unschedulable", reason="no room"))
    assert running.outcomes() == {"a": "unschedulable", "b": "unschedulable"}
    assert running.left == []


def test_what_has_a_name_of_its_own_outweighs_a_crash() -> None:
    oom = Failure(status="oom", reason="full", phase="window", ranks=(1,))
    assert one_failure([CLOSED, oom]) == oom


def test_the_board_keeps_each_ranks_newest_beat_and_every_other_post() -> None:
    board = Board()
    newest = replace(beat(0), step=4)
    for post in (beat(0), Started(run_id="a"), beat(1), newest):
        board.post("g", post)
    assert board.take() == [("g", Started(run_id="a")), ("g", newest), ("g", beat(1))]
    assert board.take() == []


def test_a_failure_names_the_nodes_of_the_ranks_that_failed() -> None:
    group = started_on("n0", "n1")
    group.hear(Raised(run_id="a", rank=1, failure=replace(CLOSED, reason="KeyError", ranks=(1,))))
    group.judge(now=1 + GRACE_S + 0.1)
    assert group.failure().nodes == ("n1",)


def test_what_a_rank_says_of_a_silent_peer_names_the_peers_node() -> None:
    group = started_on("n0", "n1")
    group.hear(Raised(run_id="a", rank=1, failure=replace(CLOSED, ranks=(1,))))
    group.judge(now=1 + GRACE_S + 0.1)
    assert group.failure().nodes == ("n0",)


def test_a_failure_of_no_rank_in_particular_names_all_nodes_once() -> None:
    for node_ids, nodes in ((("n1", "n0"), ("n1", "n0")), (("n", "n"), ("n",))):
        group = started_on(*node_ids)
        group.events += group.life.end("gone", 2)
        assert group.failure().nodes == nodes


def test_what_was_never_placed_failed_on_no_node() -> None:
    group = Group()
    group.events += group.life.refuse(Failure(status="unschedulable", reason="too large"))
    outcomes = [event.outcome for event in group.events if isinstance(event, Finished)]
    assert [outcome.nodes for outcome in outcomes if isinstance(outcome, Failure)] == [(), ()]


def started_on(*node_ids: str) -> Group:
    group = Group()
    ready = [Ready(rank=rank, logs=(), oom_kills=0) for rank in (0, 1)]
    group.hear(Assembled(node_ids=node_ids), *ready, Started(run_id="a"))
    return group
