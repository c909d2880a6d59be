"""What follows a failed attempt, told by histories made up for it."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.execution.causes import Cause
from jobs.recovery.policy import (
    FailedAttempt,
    GiveUp,
    Policy,
    Retry,
    RollBack,
    left_out,
    next_move,
    since_progress,
)

POLICY = Policy()
CAUSES: tuple[Cause, ...] = (
    "worker died", "host lost", "host silent", "driver died", "hang", "partition", "out of memory",
    "error", "device failed", "invalid loss", "corruption", "store", "no room", "preempted",
)  # fmt: skip


def ending(term: int, cause: Cause, **more: object) -> FailedAttempt:
    facts = FailedAttempt(term=term, cause=cause, reason="boom", ended_s=60.0 * term, step=term)
    return replace(facts, **more)  # type: ignore[arg-type]  # fields of it


def row(*causes: Cause, **more: object) -> list[FailedAttempt]:
    return [ending(term, cause, **more) for term, cause in enumerate(causes, start=1)]


@pytest.mark.parametrize("cause", ["worker died", "host lost", "hang"])
def test_who_lost_workers_tries_again_at_once(cause: Cause) -> None:
    assert next_move(row(cause), POLICY) == Retry(after_s=0)


def test_pauses_double_and_are_bounded() -> None:
    pauses = []
    for count in range(1, 10):
        move = next_move(row(*["host lost"] * count), replace(POLICY, most_pause_s=100))
        assert isinstance(move, Retry)
        pauses.append(move.after_s)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 100]


def test_the_same_error_at_the_same_step_twice_is_given_up() -> None:
    history = [ending(1, "error", step=7), ending(2, "error", step=7)]
    assert next_move(history, POLICY) == GiveUp(reason="the same error at step 7 twice")


ILLEGAL = "rank 0: RuntimeError: CUDA error: an illegal memory access was encountered"
ECC = "rank 0: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def device_failed_on(term: int, node: str, reason: str) -> FailedAttempt:
    return ending(term, "device failed", step=7, nodes=(node,), all_nodes=(node, "good"), reason=reason)


@pytest.mark.parametrize("reason", [ILLEGAL, ECC])
def test_a_node_whose_device_failed_twice_is_left_out(reason: str) -> None:
    history = [device_failed_on(term, "bad", reason) for term in (1, 2)]
    assert next_move(history, POLICY) == Retry(after_s=1, without=("bad",))


def test_devices_of_two_nodes_that_fail_alike_at_one_step_run_a_faulty_kernel() -> None:
    history = [device_failed_on(term, f"node-{term}", ILLEGAL) for term in (1, 2)]
    assert next_move(history, POLICY) == GiveUp(reason="the same error at step 7 twice")
    for other in (
        [replace(one, step=one.term) for one in history],
        [replace(one, nodes=()) for one in history],
    ):
        assert isinstance(next_move(other, POLICY), Retry)


def test_devices_that_are_broken_are_no_fault_of_the_program() -> None:
    history = [device_failed_on(term, f"node-{term}", ECC) for term in (1, 2)]
    assert isinstance(next_move(history, POLICY), Retry)


def error_on(term: int, node: str) -> FailedAttempt:
    return ending(term, "error", step=7, nodes=(node,), all_nodes=(node, "good"))


def test_the_same_error_on_the_same_node_twice_is_tried_once_more_without_that_node() -> None:
    """Such as a folder that is missing there. A spare that is bad must not end a run."""
    history = [error_on(1, "bad"), error_on(2, "bad")]
    assert next_move(history, POLICY) == Retry(after_s=10, without=("bad",))
    for other in ("bad", "fine"):
        third = next_move([*history, error_on(3, other)], POLICY)
        assert third == GiveUp(reason="the same error at step 7 3 times")


def test_the_same_error_on_two_nodes_or_on_all_is_the_programs() -> None:
    assert isinstance(next_move([error_on(1, "one"), error_on(2, "other")], POLICY), GiveUp)
    everywhere = row("error", "error", step=7, nodes=("a", "b"), all_nodes=("a", "b"))
    assert isinstance(next_move(everywhere, POLICY), GiveUp)


def test_an_address_in_memory_does_not_make_it_another_error() -> None:
    history = [
        ending(1, "error", step=7, reason="rank 0: ValueError: <Batch at 0x7f12>"),
        ending(2, "error", step=7, reason="rank 1: ValueError: <Batch at 0x7f99>"),
    ]
    assert isinstance(next_move(history, POLICY), GiveUp)


def test_that_it_was_preempted_in_between_does_not_hide_that_it_is_the_same_error() -> None:
    history = [ending(1, "error", step=7), ending(2, "preempted", step=3), ending(3, "error", step=7)]
    assert isinstance(next_move(history, POLICY), GiveUp)


def test_that_checkpoints_were_saved_before_it_does_not_hide_that_it_is_the_same_error() -> None:
    history = [ending(1, "error", step=7), ending(2, "error", step=7, durable_step=5)]
    assert isinstance(next_move(history, POLICY), GiveUp)


@pytest.mark.parametrize("other", [{"step": 8}, {"reason": "another"}])
def test_another_error_or_the_same_elsewhere_is_tried_again(other: dict[str, object]) -> None:
    history = [ending(1, "error", step=7), replace(ending(2, "error", step=7), **other)]  # type: ignore[arg-type]  # fields of it
    assert next_move(history, POLICY) == Retry(after_s=10)


def test_no_memory_at_the_same_step_is_given_up_however_much_was_asked_for() -> None:
    history = [
        ending(1, "out of memory", step=3, reason="tried to allocate 5 GiB"),
        ending(2, "out of memory", step=3, reason="tried to allocate 6 GiB"),
    ]
    assert next_move(history, POLICY) == GiveUp(reason="out of memory at step 3 twice")


@pytest.mark.parametrize(
    ("cause", "most"), [("worker died", 10), ("hang", 3), ("partition", 3), ("error", 3)]
)
def test_each_kind_has_a_budget(cause: Cause, most: int) -> None:
    assert isinstance(next_move(row(*[cause] * (most - 1)), POLICY), Retry)
    assert isinstance(next_move(row(*[cause] * most), POLICY), GiveUp)


def test_a_newer_checkpoint_resets_the_budgets_and_the_pauses() -> None:
    history = [ending(term, "hang", durable_step=10 * term) for term in range(1, 200)]
    assert next_move(history, POLICY) == Retry(after_s=0)


def test_a_checkpoint_that_is_saved_once_more_is_no_progress() -> None:
    history = [ending(term, "hang", durable_step=10) for term in (1, 2, 3)]
    assert isinstance(next_move(history, POLICY), GiveUp)


def test_preemptions_are_free_and_go_on_at_once() -> None:
    assert next_move(row(*["preempted"] * 500), replace(POLICY, max_attempts=1)) == Retry(after_s=0)


def test_a_wrong_loss_steps_back_three_times() -> None:
    moves = [next_move(row(*["invalid loss"] * count), POLICY) for count in (1, 2, 3, 4)]
    assert moves[:3] == [RollBack(after_s=0, num_generations=count) for count in (0, 1, 2)]
    assert moves[3] == GiveUp(reason="stepped back 3 times before")


def test_a_node_that_computes_wrongly_is_left_out_from_the_first_time_on_and_the_run_steps_back() -> None:
    history = row("corruption", nodes=("b",), all_nodes=("a", "b", "c"))
    assert next_move(history, POLICY) == RollBack(after_s=0, num_generations=0, without=("b",))
    # Also where later attempts fail for something else, and however often: it goes back no further.
    later = [*history, ending(2, "hang", nodes=("a",), all_nodes=("a", "c", "d"))]
    assert left_out(later) == ("b",)
    again = [*history, ending(2, "corruption", nodes=("a",), all_nodes=("a", "c", "d"))]
    assert next_move(again, POLICY) == RollBack(after_s=0, num_generations=0, without=("b", "a"))


def test_where_nobody_knows_which_node_computes_wrongly_none_is_left_out_and_there_is_an_end() -> None:
    history = [ending(term, "corruption", nodes=("a", "b"), all_nodes=("a", "b")) for term in (1, 2, 3, 4)]
    moves = [next_move(history[:count], POLICY) for count in (1, 2, 3, 4)]
    assert moves[:3] == [RollBack(after_s=0, num_generations=0)] * 3
    assert moves[3] == GiveUp(reason="stepped back 3 times before")


def test_a_store_that_is_away_is_waited_for_with_growing_pauses_but_not_for_ever() -> None:
    history: list[FailedAttempt] = []
    now, pauses = 0.0, []
    while True:
        history.append(ending(1, "store", ended_s=now))
        move = next_move(history, POLICY)
        if isinstance(move, GiveUp):
            break
        pauses.append(move.after_s)
        now += move.after_s
    assert pauses[:4] == [10, 20, 40, 80]
    assert pauses == sorted(pauses)
    assert max(pauses) == POLICY.most_pause_s
    assert POLICY.patience_s < now < POLICY.patience_s + POLICY.most_pause_s
    assert move == GiveUp(reason="the store was away for 6.0 h")


def test_a_short_patience_is_told_in_seconds() -> None:
    history = [ending(term, "no room", ended_s=9.0 * term) for term in (1, 2, 3, 4)]
    policy = replace(POLICY, patience_s=20)
    assert next_move(history, policy) == GiveUp(reason="there was no room for 27 s")


@pytest.mark.parametrize("cause", ["store", "no room"])
@pytest.mark.parametrize("jump_s", [86_400.0, -3600.0])
def test_a_clock_that_is_set_uses_up_half_of_the_patience_at_most_and_adds_none(
    jump_s: float, cause: Cause
) -> None:
    history: list[FailedAttempt] = []
    waited_s = 0.0
    while True:
        history.append(ending(1, cause, ended_s=waited_s + (jump_s if len(history) >= 3 else 0.0)))
        move = next_move(history, POLICY)
        if not isinstance(move, Retry):
            break
        waited_s += move.after_s
    assert POLICY.patience_s / 2 < waited_s < POLICY.patience_s + 2 * POLICY.most_pause_s


def test_what_can_not_succeed_is_given_up_at_once() -> None:
    assert isinstance(next_move(row("refused"), POLICY), GiveUp)


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"preempted"}))
def test_one_attempt_means_one_attempt(cause: Cause) -> None:
    assert isinstance(next_move(row(cause), replace(POLICY, max_attempts=1)), GiveUp)


def test_a_node_that_fails_twice_in_a_row_is_left_out() -> None:
    history = [
        ending(term, "worker died", nodes=("bad",), all_nodes=("bad", "good"), durable_step=10 * term)
        for term in (1, 2)
    ]
    assert left_out(history[:1]) == ()
    assert next_move(history, POLICY) == Retry(after_s=0, without=("bad",))


def test_a_node_that_did_well_in_between_is_not_left_out() -> None:
    history = [
        ending(1, "worker died", nodes=("a",), all_nodes=("a", "b"), durable_step=10),
        ending(2, "worker died", nodes=("b",), all_nodes=("a", "b"), durable_step=20),
        ending(3, "worker died", nodes=("a",), all_nodes=("a", "b"), durable_step=30),
    ]
    assert left_out(history) == ()


def test_what_a_node_did_more_than_a_day_ago_is_forgotten() -> None:
    day_s = 24 * 3600.0
    first = ending(1, "host lost", nodes=("a",), all_nodes=("a", "b"), ended_s=1000.0)
    for later_s, without in ((day_s - 1, ("a",)), (day_s + 1, ())):
        again = replace(first, term=2, ended_s=1000.0 + later_s, durable_step=10)
        assert left_out([first, again]) == without
    third = replace(again, term=3, ended_s=again.ended_s + 1)
    assert left_out([first, again, third]) == ("a",)


def test_what_all_nodes_fail_at_is_held_against_none() -> None:
    history = [ending(term, "error", nodes=("a", "b"), all_nodes=("a", "b")) for term in (1, 2)]
    assert left_out(history) == ()


@pytest.mark.parametrize("cause", ["out of memory", "invalid loss", "preempted", "no room", "store"])
def test_what_happens_anywhere_is_not_held_against_a_node(cause: Cause) -> None:
    history = [ending(term, cause, nodes=("a",), all_nodes=("a", "b"), step=term) for term in (1, 2)]
    assert left_out(history) == ()


endings = st.builds(
    FailedAttempt,
    term=st.just(1),
    cause=st.sampled_from(CAUSES),
    reason=st.sampled_from(["a", "b"]),
    ended_s=st.just(0.0),
    step=st.integers(0, 5),
    durable_step=st.integers(0, 5),
    nodes=st.sampled_from([(), ("a",), ("a", "b")]),
    all_nodes=st.just(("a", "b", "c")),
)


@given(st.lists(endings, min_size=1, max_size=30))
def test_whatever_happened_a_pause_is_bounded_and_what_is_left_out_was_there(
    history: list[FailedAttempt],
) -> None:
    move = next_move(history, POLICY)
    if not isinstance(move, GiveUp):
        assert 0 <= move.after_s <= POLICY.most_pause_s
        assert set(move.without) <= {"a", "b"}


@given(
    st.lists(endings, min_size=1, max_size=30), st.sampled_from(["worker died", "hang", "store", "preempted"])
)
def test_an_attempt_that_got_on_is_followed_by_another(history: list[FailedAttempt], cause: Cause) -> None:
    newest = max(one.durable_step for one in history)
    history.append(replace(history[-1], cause=cause, durable_step=newest + 1))
    assert isinstance(next_move(history, POLICY), Retry)


@given(st.integers(0, 2**32))
def test_without_progress_any_run_of_failures_ends(seed: int) -> None:
    dice, history, now = Random(seed), [], 0.0
    bounded = [cause for cause in CAUSES if cause != "preempted"]
    for term in range(1, 300):
        history.append(
            ending(term, dice.choice(bounded), step=dice.randint(0, 10**6), reason=str(term), ended_s=now)
        )
        move = next_move(history, POLICY)
        if isinstance(move, GiveUp):
            return
        now += move.after_s + 60
    raise AssertionError("it goes on for ever")


@given(st.lists(endings, min_size=1, max_size=30))
def test_nothing_recent_is_older_than_the_last_progress(history: list[FailedAttempt]) -> None:
    recent = since_progress(history)
    assert recent == history[-len(recent) :]
    assert all(one.durable_step <= max(e.durable_step for e in history) for one in recent[1:])
    before = history[: -len(recent)]
    assert not before or recent[0].durable_step > max(one.durable_step for one in before)


def test_a_deterministic_bug_ends_within_three_attempts_wherever_it_is() -> None:
    for bug_at in range(200):
        history: list[FailedAttempt] = []
        durable_step = 0
        for term in (1, 2, 3):
            durable_step = max(durable_step, (bug_at - 1) // 10 * 10)
            history.append(ending(term, "error", step=bug_at, durable_step=durable_step))
            if isinstance(next_move(history, POLICY), GiveUp):
                break
        assert term <= 3
        assert isinstance(next_move(history, POLICY), GiveUp)


@pytest.mark.parametrize(("blamed", "left"), [("a", ("a",)), ("ab", ("a", "b")), ("abc", ()), ("abcd", ())])
def test_a_hang_is_held_against_at_most_half_of_the_nodes(blamed: str, left: tuple[str, ...]) -> None:
    """Where most are behind, the others have only got away before."""
    history = row("hang", "hang", nodes=tuple(blamed), all_nodes=tuple("abcd"))
    assert set(left_out(history)) == set(left)


def parted(term: int, blamed: str, nodes: str, **more: object) -> FailedAttempt:
    return ending(term, "partition", nodes=tuple(blamed), all_nodes=tuple(nodes), **more)


def test_of_two_nodes_that_do_not_reach_each_other_one_is_left_out_at_once() -> None:
    assert next_move([parted(1, "b", "ab")], POLICY) == Retry(after_s=0, without=("b",))
    assert left_out([parted(1, "d", "abcd"), ending(2, "worker died", all_nodes=("a", "b"))]) == ("d",)


def test_a_node_that_reaches_none_of_those_beside_it_is_left_out_and_they_are_not() -> None:
    assert left_out([parted(1, "b", "ab"), parted(2, "c", "ac")]) == ("a",)


def test_parted_nodes_that_got_on_together_later_are_used_again() -> None:
    history = [parted(1, "b", "ab"), ending(2, "worker died", all_nodes=("a", "b"), durable_step=10)]
    assert left_out(history) == ()
    # What was saved without one of them says nothing of their way, nor does a save before they parted.
    elsewhere = ending(2, "worker died", all_nodes=("a", "c"), durable_step=10)
    assert left_out([history[0], elsewhere]) == ("b",)
    assert left_out([parted(1, "b", "ab", durable_step=10)]) == ("b",)


def test_where_most_nodes_are_parted_none_is_left_out() -> None:
    assert left_out([parted(1, "bc", "abc")]) == ()
    assert set(left_out([parted(1, "cd", "abcd")])) == {"c", "d"}
