"""Which generation a run goes on from: tables of what there is, and what is chosen."""

from dataclasses import replace

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.generations.choice import Decision, OnDisk, choose, find
from checkpointing.generations.retention import Retention
from checkpointing.log.history import (  # fmt: skip
    Commit,
    Entry,
    Fresh,
    Generation,
    Lease,
    Load,
    LogView,
    Quarantine,
    Resumed,
    Tombstone,
)
from tests.unit.small_generations import generation, good, view_of


def name(number: int) -> str:
    return generation(number).name


def loads(number: int, times: int = 2) -> list[Entry]:
    return [Load(name=name(number))] * times


def bad(number: int) -> Entry:
    return Quarantine(name=name(number), reason="a bit flipped")


def on_disk(number: int, *, term: int = 1) -> OnDisk:
    found = generation(number, term=term)
    return OnDisk(name=found.name, step=found.step, term=term, number=number)


def chosen(decision: Decision) -> str:
    assert decision.chosen is not None
    return decision.chosen.name


THREE = [Lease(owner="a"), *good(1), *good(2), *good(3)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([*THREE], 3),
        ([*THREE, Commit(generation=generation(4))], 4),
        ([*THREE, bad(3)], 2),
        ([*THREE, bad(3), bad(2)], 1),
        ([*THREE, bad(1)], 3),
        ([*THREE, *loads(3, 1)], 3),
        ([*THREE, *loads(3, 2)], 2),
        ([*THREE, *loads(3, 2), *loads(2, 2)], 1),
        ([*THREE, *loads(3, 1), Resumed(name=name(3)), *loads(3, 1)], 3),
        ([*THREE, Tombstone(names=(name(3),))], 2),
        ([*THREE, *good(4, step=5)], "000000000005-t1-s4"),
        # A later term counts more than a higher number or step of an earlier one.
        ([*THREE, Lease(owner="b"), *good(1, term=2, step=20)], "000000000020-t2-s1"),
    ],
    ids=str,
)
def test_latest_is_the_newest_that_can_be_used(entries: list[Entry], expected: int | str) -> None:
    decision = choose(view_of(*entries))
    assert chosen(decision) == (expected if isinstance(expected, str) else name(expected))


def test_nothing_at_all_begins_at_step_0_and_says_so() -> None:
    decision = choose(view_of(Lease(owner="a")))
    assert decision == Decision(chosen=None, trail=("no generation yet: begins at step 0",))


def test_generations_none_of_which_can_be_used_are_not_a_new_run() -> None:
    with pytest.raises(NothingToResume, match=f"{name(1)}: passed over, a bit flipped"):
        choose(view_of(*THREE, bad(1), bad(2), bad(3)))


def test_if_the_hosts_memory_alone_had_any_and_it_is_damaged_it_begins_at_step_0_as_if_it_were_lost() -> None:
    one, other = (replace(on_disk(number), is_in_memory=True) for number in (1, 2))
    refused = {one.name: "rank 1: damaged", other.name: "rank 0: damaged"}
    decision = choose(view_of(Lease(owner="a")), [one, other], refused=refused)
    assert decision.chosen is None
    assert decision.trail == (
        f"{other.name}: passed over, rank 0: damaged",
        f"{one.name}: passed over, rank 1: damaged",
        "the hosts' memory alone had a generation, and it is damaged: begins at step 0",
    )


@pytest.mark.parametrize("entries", [[], good(1)], ids=["on a disk", "stored"])
def test_if_another_place_had_any_that_is_damaged_it_never_begins_at_step_0(entries: list[Entry]) -> None:
    near = [on_disk(1), replace(on_disk(2), is_in_memory=True)]
    refused = {one.name: "rank 1: damaged" for one in near}
    with pytest.raises(NothingToResume, match="none of its generations can be used"):
        choose(view_of(Lease(owner="a"), *entries), near, refused=refused)


def test_the_trail_says_why_each_newer_one_was_passed_over() -> None:
    decision = choose(view_of(*THREE, bad(3), *loads(2)))
    assert decision.trail == (
        f"{name(3)}: passed over, a bit flipped",
        f"{name(2)}: passed over, 2 loads ended before one step was finished",
        f"{name(1)}: chosen, from the store",
    )
    assert decision.poison == (name(2),)


def test_what_was_tried_by_this_start_is_not_tried_again() -> None:
    assert chosen(choose(view_of(*THREE), refused={name(3): "damaged"})) == name(2)
    with pytest.raises(NothingToResume):
        choose(view_of(*THREE), refused={name(number): "damaged" for number in (1, 2, 3)})


@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ([*good(1), *loads(1)], {}),
        ([*good(1), *good(2), bad(1), *loads(2)], {}),
        ([*good(1), *good(2), *loads(2)], {name(1): "damaged"}),
    ],
    ids=["the only one", "the others are quarantined", "the others were refused"],
)
def test_the_last_one_that_can_be_used_is_never_poison(entries: list[Entry], refused: dict[str, str]) -> None:
    decision = choose(view_of(*entries), refused=refused)
    assert decision.poison == ()
    assert decision.chosen is not None


def test_a_newer_one_on_all_disks_is_preferred_though_the_log_does_not_know_it() -> None:
    decision = choose(view_of(*THREE), [on_disk(2), on_disk(4)])
    assert decision.chosen is not None
    assert (decision.chosen.name, decision.chosen.is_stored) == (name(4), False)
    assert decision.trail == (f"{name(4)}: chosen, on the nodes' disks alone",)


def test_a_stored_one_is_read_from_the_disks_where_they_have_it() -> None:
    decision = choose(view_of(*THREE), [on_disk(3)])
    assert decision.chosen is not None
    assert decision.chosen.is_stored
    assert decision.trail == (f"{name(3)}: chosen, from the nodes' disks",)


def test_of_what_the_survivors_of_one_attempt_left_the_later_step_is_chosen() -> None:
    left = [replace(on_disk(number), number=10**9) for number in (4, 5)]
    for order in (left, left[::-1]):
        assert chosen(choose(view_of(*THREE), order)) == name(5)


@pytest.mark.parametrize(
    ("entries", "disk", "expected"),
    [
        ([*THREE, Lease(owner="b")], on_disk(9, term=1), name(9)),
        ([*THREE, Lease(owner="b"), *good(1, term=2)], on_disk(9, term=1), generation(1, term=2).name),
        ([*THREE, *loads(4)], on_disk(4), name(3)),
        ([*THREE, bad(3)], on_disk(3), name(2)),
    ],
    ids=["of an earlier attempt", "older than a later attempt's", "poison", "quarantined in the log"],
)
def test_what_is_on_the_disks_takes_its_turn(entries: list[Entry], disk: OnDisk, expected: str) -> None:
    assert chosen(choose(view_of(*entries), [disk])) == expected


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (on_disk(5, term=2), name(3)),
        (on_disk(5, term=1), name(3)),
        (on_disk(4, term=2), generation(4, term=2).name),
        (on_disk(5, term=3), generation(5, term=3).name),
    ],
    ids=["of the attempt that went wrong", "of an earlier one", "from before that", "of a later one"],
)
def test_what_the_disks_alone_have_from_after_a_loss_went_wrong_is_not_gone_on_from(
    disk: OnDisk, expected: str
) -> None:
    entries = [*THREE, Lease(owner="b"), Lease(owner="c")]
    spoilt = ((1, on_disk(6).step), (2, on_disk(4).step))
    assert chosen(choose(view_of(*entries), [disk], spoilt=spoilt)) == expected


def test_begun_afresh_nothing_of_the_former_life_is_gone_on_from() -> None:
    entries = [*THREE, Lease(owner="b"), Fresh()]
    assert choose(view_of(*entries)).chosen is None
    assert choose(view_of(*entries), [on_disk(4, term=1)]).chosen is None
    assert chosen(choose(view_of(*entries), [on_disk(1, term=2)])) == generation(1, term=2).name
    assert chosen(choose(view_of(*entries, *good(1, term=2)))) == generation(1, term=2).name


def test_one_of_a_former_life_can_be_named() -> None:
    decision = choose(view_of(*THREE, Lease(owner="b"), Fresh()), what=name(2))
    assert chosen(decision) == name(2)


SCORED = view_of(
    Lease(owner="a"),
    *good(1, epoch_end=1, metrics={"val_loss": 1.0}),
    *good(2, epoch_end=2, metrics={"val_loss": 0.5}),
    *good(3, step=10, epoch_end=2),
    *good(4),
    Commit(generation=generation(5)),
)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("latest", 5),
        ("backup", 4),
        ("best", 2),
        ("epoch:1", 1),
        ("epoch:2", 3),
        ("step:10", 3),
        ("step:40", 4),
        (name(1), 1),
    ],
)
def test_a_word_names_one_generation(what: str, expected: int) -> None:
    assert _number(find(SCORED, what, Retention())) == expected
    assert chosen(choose(SCORED, what=what)) == find(SCORED, what, Retention()).name


@pytest.mark.parametrize(
    "what", ["epoch:9", "step:7", "epoch:", "epoch:x", "step:²", "nothing", "", "Latest"]
)
def test_what_names_nothing_is_an_error_that_lists_what_there_is(what: str) -> None:
    with pytest.raises(NothingToResume, match=f"newest: .*{name(5)}.*expected latest, backup, best"):
        choose(SCORED, what=what)


@pytest.mark.parametrize("what", ["latest", "backup", "best", "epoch:1", "step:1", "x"])
def test_a_word_finds_nothing_where_there_is_nothing(what: str) -> None:
    with pytest.raises(NothingToResume, match="newest: none"):
        find(LogView(), what, Retention())


def test_a_named_one_that_cannot_be_used_is_an_error_and_never_another_one() -> None:
    view = view_of(*THREE, bad(2))
    with pytest.raises(NothingToResume, match="a bit flipped"):
        choose(view, what=name(2))
    with pytest.raises(NothingToResume, match="damaged here"):
        choose(view, what=name(3), refused={name(3): "damaged here"})


def _number(found: Generation) -> int:
    return found.number
