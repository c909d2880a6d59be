"""When a save is due, and where it goes: tables over rank 0's one question per step."""

from dataclasses import replace

import pytest

from checkpointing.saving.cadence import (
    Busy,
    Cadence,
    Order,
    SavesSoFar,
    SkippedSave,
    behind_epochs_end,
    busy_after,
    next_order,
    with_memory,
)

EACH_STEP = Cadence(every_s=None, every_steps=1)
FRESH = SavesSoFar(last_s=100.0)
ALL_BUSY = Busy(disk=True, store=True)


def ask(
    cadence: Cadence,
    past: SavesSoFar = FRESH,
    *,
    step: int = 1,
    now_s: float = 100.0,
    busy: Busy | None = None,
    is_epoch_end: bool = False,
    is_evaluated: bool = False,
) -> tuple[Order | SkippedSave | None, SavesSoFar]:
    busy = busy or Busy()
    found, past = next_order(
        cadence,
        past,
        step=step,
        now_s=now_s,
        busy=busy,
        is_epoch_end=is_epoch_end,
        is_evaluated=is_evaluated,
    )
    return with_memory(cadence, found, step=step, busy=busy), past


def places(answer: Order | SkippedSave | None) -> tuple[bool, bool]:
    """To the disk, to the store."""
    assert isinstance(answer, Order)
    return answer.to_disk, answer.to_store


def over_steps(
    cadence: Cadence, num_steps: int, busy: Busy | None = None
) -> list[Order | SkippedSave | None]:
    answers, past = [], FRESH
    for step in range(1, num_steps + 1):
        answer, past = ask(cadence, past, step=step, busy=busy)
        answers.append(answer)
    return answers


def test_a_save_is_due_every_so_many_seconds_after_the_last_one() -> None:
    cadence = Cadence(every_s=60.0)
    assert ask(cadence, now_s=159.9) == (None, FRESH)
    answer, past = ask(cadence, now_s=160.0)
    assert answer == Order(to_disk=True, to_store=True)
    assert past == SavesSoFar(last_s=160.0, num_due=1)
    assert ask(cadence, past, now_s=219.9) == (None, past)
    assert ask(cadence, past, now_s=220.0)[0] == answer


def test_a_count_of_steps_replaces_the_seconds() -> None:
    cadence = Cadence(every_s=60.0, every_steps=3)
    due = [step for step in range(1, 10) if ask(cadence, step=step, now_s=1e6)[0]]
    assert due == [3, 6, 9]


def test_without_either_nothing_is_due_but_what_is_evaluated_and_an_epochs_end() -> None:
    cadence = Cadence(every_s=None)
    assert ask(cadence, step=60, now_s=1e6) == (None, FRESH)
    assert places(ask(cadence, is_evaluated=True)[0]) == (True, True)
    assert places(ask(cadence, is_epoch_end=True)[0]) == (True, True)


@pytest.mark.parametrize(
    ("disk_every", "store_every", "expected"),
    [
        (1, 1, ["both", "both", "both", "both"]),
        (1, 2, ["disk", "both", "disk", "both"]),
        (2, 1, ["store", "both", "store", "both"]),
        (0, 1, ["store", "store", "store", "store"]),
        (1, 0, ["disk", "disk", "disk", "disk"]),
        (2, 3, ["none", "disk", "store", "disk"]),
        (0, 0, ["none", "none", "none", "none"]),
    ],
)
def test_each_place_takes_its_own_share_of_the_saves(
    disk_every: int, store_every: int, expected: list[str]
) -> None:
    words = {(True, True): "both", (True, False): "disk", (False, True): "store"}
    cadence = replace(EACH_STEP, disk_every=disk_every, store_every=store_every)
    answers = over_steps(cadence, 4)
    # What is nobody's turn is not skipped either: a skip is told, and would alarm.
    assert [words[places(answer)] if answer else "none" for answer in answers] == expected


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (Busy(), Order(to_disk=True, to_store=True)),
        (Busy(store=True), Order(to_disk=True, to_store=False)),
        (Busy(disk=True), Order(to_disk=False, to_store=True)),
        (ALL_BUSY, SkippedSave()),
    ],
)
def test_a_busy_place_is_skipped_and_the_other_is_not(busy: Busy, expected: Order | SkippedSave) -> None:
    assert ask(EACH_STEP, busy=busy)[0] == expected


def test_who_wants_each_one_waits_for_what_is_on_its_way() -> None:
    answer, _ = ask(replace(EACH_STEP, on_busy="wait"), busy=ALL_BUSY)
    assert answer == Order(to_disk=True, to_store=True, must_wait=True)


def test_a_skipped_save_has_had_its_turn() -> None:
    """Else a store that is slower than the saves would be asked at each of them."""
    cadence = Cadence(every_s=60.0, store_every=2)
    answer, past = ask(cadence, SavesSoFar(last_s=0.0, num_due=1), now_s=60.0, busy=ALL_BUSY)
    assert (answer, past) == (SkippedSave(), SavesSoFar(last_s=60.0, num_due=2))
    answer, past = ask(cadence, past, now_s=120.0)
    assert (places(answer), past) == ((True, False), SavesSoFar(last_s=120.0, num_due=3))


@pytest.mark.parametrize("on_busy", ["skip", "wait"])
@pytest.mark.parametrize("store_every", [0, 1, 5])
def test_an_epochs_end_waits_and_reaches_the_store_whatever_is_busy_or_whose_turn_it_is(
    store_every: int, on_busy: str
) -> None:
    cadence = Cadence(every_s=None, disk_every=3, store_every=store_every)
    cadence = replace(cadence, on_busy="wait") if on_busy == "wait" else cadence
    answer, past = ask(cadence, now_s=130.0, busy=ALL_BUSY, is_epoch_end=True)
    assert answer == Order(to_disk=True, to_store=True, must_wait=True)
    assert past == SavesSoFar(last_s=130.0, num_due=0)


def test_an_epochs_end_leaves_out_the_disks_that_nobody_wants() -> None:
    assert places(ask(replace(EACH_STEP, disk_every=0), is_epoch_end=True)[0]) == (False, True)


@pytest.mark.parametrize("store_every", [0, 1, 2, 5])
def test_what_was_evaluated_goes_to_the_store_out_of_turn(store_every: int) -> None:
    cadence = replace(EACH_STEP, disk_every=2, store_every=store_every)
    answer, past = ask(cadence, now_s=130.0, is_evaluated=True)
    assert answer == Order(to_disk=False, to_store=True)
    assert past == SavesSoFar(last_s=130.0, num_due=1)


def test_what_was_evaluated_is_skipped_where_the_store_is_busy_unless_each_one_is_wanted() -> None:
    cadence = replace(EACH_STEP, disk_every=0, store_every=5)
    assert ask(cadence, busy=Busy(store=True), is_evaluated=True)[0] == SkippedSave()
    waiting = replace(cadence, on_busy="wait")
    expected = Order(to_disk=False, to_store=True, must_wait=True)
    assert ask(waiting, busy=Busy(store=True), is_evaluated=True)[0] == expected


def test_while_the_disk_of_any_node_fails_each_save_for_the_disks_goes_to_the_store_too() -> None:
    cadence = replace(EACH_STEP, disk_every=2, store_every=5)
    failing = Busy(is_disk_failing=True)
    well, ill = over_steps(cadence, 4), over_steps(cadence, 4, failing)
    assert [places(answer) for answer in well if answer] == [(True, False)] * 2
    assert [places(answer) for answer in ill if answer] == [(True, True)] * 2
    assert ask(replace(EACH_STEP, disk_every=0, store_every=5), busy=failing)[0] is None
    busy = Busy(store=True, is_disk_failing=True)
    assert ask(replace(EACH_STEP, store_every=5), busy=busy)[0] == Order(to_disk=True, to_store=False)


IN_MEMORY = Cadence(every_s=None, every_steps=4, disk_every=0, memory_every_steps=2)


def test_memory_has_each_so_many_steps_and_whatever_is_saved_elsewhere() -> None:
    every_third = replace(IN_MEMORY, memory_every_steps=3)
    assert [order and (order.to_memory, order.to_store) for order in over_steps(every_third, 8)] == [
        None, None, (True, False), (True, True), None, (True, False), None, (True, True),
    ]  # fmt: skip
    order, _ = ask(every_third, step=5, is_epoch_end=True)
    assert isinstance(order, Order) and order.to_memory and order.to_store


def test_memory_alone_counts_as_no_save_elsewhere() -> None:
    order, past = ask(IN_MEMORY, step=2)
    assert (order, past) == (Order(to_disk=False, to_store=False, to_memory=True), FRESH)
    assert order.is_for_memory_alone and not replace(order, to_store=True).is_for_memory_alone


def test_memory_is_never_waited_for() -> None:
    busy = Busy(memory=True)
    assert over_steps(IN_MEMORY, 3, busy) == [None, None, None]
    order, _ = ask(IN_MEMORY, step=4, busy=busy)
    assert order == Order(to_disk=False, to_store=True)


def test_a_save_that_is_skipped_is_skipped_in_memory_too() -> None:
    order, _ = ask(IN_MEMORY, step=4, busy=ALL_BUSY)
    assert order == SkippedSave()


def test_behind_a_save_in_memory_the_next_one_elsewhere_is_made_where_an_arena_is_free() -> None:
    alone, elsewhere = (Order(to_disk=False, to_store=store, to_memory=True) for store in (False, True))
    both = replace(IN_MEMORY, disk_every=1)
    after_memory = busy_after(alone, Busy())
    assert ask(both, step=4, busy=after_memory)[0] == Order(to_disk=True, to_store=True)
    assert ask(both, step=2, busy=after_memory)[0] is None, "and none in memory yet"
    # The other arena is the store's.
    assert ask(both, step=4, busy=busy_after(alone, Busy(store=True)))[0] == SkippedSave()
    assert ask(both, step=4, busy=busy_after(elsewhere, Busy()))[0] == SkippedSave()


ON_NODES = Order(to_disk=True, to_store=False, to_memory=True)
AN_END = Busy(store=True, epochs_end=True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Order(to_disk=False, to_store=False, to_memory=True), None),
        (ON_NODES, SkippedSave()),
        # It waits in its cut until that end is there.
        (replace(ON_NODES, must_wait=True), replace(ON_NODES, must_wait=True, to_store=True)),
        (replace(ON_NODES, to_store=True), replace(ON_NODES, to_store=True)),
        (SkippedSave(), SkippedSave()),
        (None, None),
    ],
)
def test_while_an_epochs_end_is_on_its_way_to_the_store_the_nodes_alone_get_nothing_from_behind_it(
    found: Order | SkippedSave | None, expected: Order | SkippedSave | None
) -> None:
    assert behind_epochs_end(found, busy=AN_END) == expected
    assert behind_epochs_end(found, busy=replace(AN_END, epochs_end=False)) == found


def test_an_epochs_end_is_on_its_way_from_its_cut_until_all_have_said_that_it_is_not() -> None:
    end = Order(to_disk=False, to_store=True, must_wait=True)
    busy = busy_after(end, Busy(), is_epochs_end=True)
    assert busy.epochs_end
    assert busy_after(end, busy).epochs_end, "what was cut behind it says nothing of it"
    assert busy_after(Order(to_disk=False, to_store=False, to_memory=True), busy).epochs_end
    assert not busy_after(end, Busy()).epochs_end
