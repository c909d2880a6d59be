"""At which world sizes a run goes on: with any cluster, however its nodes come and go."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.recovery.world_size import (
    DividedBatch,
    Outlook,
    ResizeWaits,
    SizedStart,
    Wait,
    began,
    choose,
    look_for_more,
    refusal,
    sizes_between,
)
from jobs.training.task.sample_order import share_of_rank

PATIENCE = ResizeWaits(wait_for_spare_s=60, grow_after_s=300)
ROOMS = st.integers(0, 12)
SECONDS = st.integers(0, 1000)
SIZES = st.sets(st.integers(1, 10), min_size=1).map(sorted)
BATCHES = st.builds(
    DividedBatch,
    sequences=st.integers(1, 60),
    micro_batch=st.integers(1, 4),
    eval_samples=st.integers(0, 60),
)


def chosen(room: int, *, wanted: int = 4, sizes: tuple[int, ...] = (1, 2, 4)) -> SizedStart | Wait:
    return choose(sizes, Outlook(wanted=wanted), room=room, now_s=0, patience=PATIENCE)[0]


def test_a_run_starts_at_its_largest_size_where_there_is_room() -> None:
    assert chosen(9) == SizedStart(world_size=4)


def test_with_too_little_room_it_waits_for_a_spare_and_then_goes_on_with_what_divides() -> None:
    outlook = Outlook(wanted=4)
    told = []
    for now_s in (10, 40, 69, 70):
        answer, outlook = choose((1, 2, 4), outlook, room=3, now_s=now_s, patience=PATIENCE)
        told.append(answer)
    waits = [Wait(wanted=4, room=3, for_s=for_s) for for_s in (60, 30, 1)]
    assert told == [*waits, SizedStart(world_size=2)]


def test_a_spare_that_comes_in_time_is_used_at_once() -> None:
    _, outlook = choose((1, 2), Outlook(wanted=2), room=1, now_s=0, patience=PATIENCE)
    answer, _ = choose((1, 2), outlook, room=2, now_s=30, patience=PATIENCE)
    assert answer == SizedStart(world_size=2)


def test_more_room_that_has_just_come_is_used_only_after_it_stayed() -> None:
    answer, outlook = choose((1, 2), Outlook(wanted=1), room=2, now_s=0, patience=PATIENCE)
    assert answer == SizedStart(world_size=1)
    # That attempt never ran, and the room is still there.
    answer, _ = choose((1, 2), outlook, room=2, now_s=299, patience=PATIENCE)
    assert answer == SizedStart(world_size=1)
    answer, _ = choose((1, 2), outlook, room=2, now_s=300, patience=PATIENCE)
    assert answer == SizedStart(world_size=2)
    # Or it ran: then it grows as any run does.
    assert began(outlook) == Outlook(wanted=1)


def test_room_that_went_and_came_again_has_just_come() -> None:
    outlook = Outlook(wanted=1)
    for now_s, room, size in ((0, 2, 1), (200, 1, 1), (310, 2, 1), (609, 2, 1), (610, 2, 2)):
        answer, outlook = choose((1, 2), outlook, room=room, now_s=now_s, patience=PATIENCE)
        assert answer == SizedStart(world_size=size), now_s


def test_a_second_loss_is_waited_for_as_long_as_the_first() -> None:
    outlook = Outlook(wanted=4)
    for now_s, room in ((0, 2), (60, 2), (1000, 1)):
        answer, outlook = choose((1, 2, 4), outlook, room=room, now_s=now_s, patience=PATIENCE)
        outlook = began(outlook) if isinstance(answer, SizedStart) else outlook
    assert answer == Wait(wanted=2, room=1, for_s=60)


def test_an_attempt_that_was_never_placed_has_waited_meanwhile() -> None:
    """The room was that of a node whose death nobody had noticed yet."""
    answer, outlook = choose((1, 2), Outlook(wanted=2), room=2, now_s=0, patience=PATIENCE)
    assert answer == SizedStart(world_size=2)
    answer, _ = choose((1, 2), outlook, room=1, now_s=60, patience=PATIENCE)
    assert answer == SizedStart(world_size=1)


def test_a_run_of_one_size_never_waits_here() -> None:
    assert chosen(0, wanted=3, sizes=(3,)) == SizedStart(world_size=3)


def test_it_grows_once_there_has_been_room_for_long_enough_without_a_break() -> None:
    outlook = Outlook(wanted=1)
    asked = []
    for now_s, room in ((0, 2), (299, 2), (300, 1), (301, 2), (600, 2), (601, 2)):
        larger, outlook = look_for_more((1, 2), outlook, room=room, now_s=now_s, patience=PATIENCE)
        asked.append(larger)
    assert asked == [None, None, None, None, None, 2]
    assert outlook == Outlook(wanted=2)


def test_room_that_nobody_knows_is_no_room() -> None:
    outlook = Outlook(wanted=1, more_since_s=0.0)
    larger, outlook = look_for_more((1, 2), outlook, room=None, now_s=900, patience=PATIENCE)
    assert (larger, outlook.more_since_s) == (None, None)


@given(smallest=st.integers(1, 8), more=st.integers(0, 8), batch=BATCHES)
def test_every_size_does_the_whole_batch_and_the_whole_evaluation(
    smallest: int, more: int, batch: DividedBatch
) -> None:
    sizes = sizes_between(smallest, smallest + more, batch)
    for size in sizes:
        assert smallest <= size <= smallest + more
        assert size * batch.micro_batch * batch.grad_accum(size) == batch.sequences
        assert batch.eval_samples % (size * batch.micro_batch) == 0
    refused = refusal(smallest, smallest + more, batch)
    assert (refused is None) == ({smallest, smallest + more} <= set(sizes))


def test_who_does_not_divide_the_batch_is_told_who_does() -> None:
    assert refusal(1, 8, DividedBatch(sequences=8, micro_batch=1)) is None
    assert refusal(3, 8, DividedBatch(sequences=8, micro_batch=2)) == (
        "world_size: the 8 sequences of a step can't be divided among 3 ranks with micro-batches of 2; "
        "sizes that do: 1, 2, 4"
    )
    assert refusal(2, 6, DividedBatch(sequences=6, micro_batch=1, eval_samples=4)) == (
        "eval.samples: 4 can't be divided among 6 ranks with micro-batches of 1; expected a multiple of 6"
    )


@given(sizes=SIZES, wanted=st.data(), room=ROOMS, now_s=SECONDS, waited_s=SECONDS)
def test_every_question_has_an_answer_within_the_sizes(
    sizes: list[int], wanted: st.DataObject, room: int, now_s: int, waited_s: int
) -> None:
    since_s = now_s - waited_s
    outlook = Outlook(wanted=wanted.draw(st.sampled_from(sizes)), waits_since_s=since_s)
    answer, after = choose(sizes, outlook, room=room, now_s=now_s, patience=PATIENCE)
    match answer:
        case SizedStart(world_size=size):
            assert size in sizes and (size <= room or size == sizes[0])
            assert size <= outlook.wanted
            assert began(after) == Outlook(wanted=size)
        case Wait(for_s=for_s):
            assert 0 < for_s <= PATIENCE.wait_for_spare_s
            assert room < outlook.wanted


@dataclass(frozen=True, slots=True)
class Resize:
    at_s: int
    size: int
    room: int


def life(sizes: list[int], rooms: list[int], patience: ResizeWaits) -> list[Resize]:
    """What becomes of a run whose cluster has ``rooms[s]`` devices in second s, from its starts alone.

    An attempt whose ranks have no room any more ends in that second.
    """
    outlook, running, starts = Outlook(wanted=sizes[-1]), None, []
    for now_s, room in enumerate(rooms):
        if running is not None and room < running:
            running = None
        if running is not None:
            larger, outlook = look_for_more(sizes, outlook, room=room, now_s=now_s, patience=patience)
            running = running if larger is None else None
        if running is None:
            answer, outlook = choose(sizes, outlook, room=room, now_s=now_s, patience=patience)
            if isinstance(answer, SizedStart) and answer.world_size <= room:
                running, outlook = answer.world_size, began(outlook)
                starts.append(Resize(now_s, running, room))
    return starts


ROOM_FOR_A_WHILE = st.tuples(ROOMS, st.integers(1, 40))
LIVES = st.lists(ROOM_FOR_A_WHILE, min_size=1, max_size=30).map(
    lambda spans: [room for room, seconds in spans for _ in range(seconds)]
)


@given(sizes=SIZES, rooms=LIVES, wait_s=st.integers(0, 20), grow_s=st.integers(1, 20))
def test_a_run_never_leaves_its_sizes_and_never_flaps(
    sizes: list[int], rooms: list[int], wait_s: int, grow_s: int
) -> None:
    starts = life(sizes, rooms, ResizeWaits(wait_for_spare_s=wait_s, grow_after_s=grow_s))
    assert all(start.size in sizes for start in starts)
    for before, after in pairwise(starts):
        was_lost = min(rooms[before.at_s : after.at_s + 1]) < before.size
        if not was_lost:
            # It gave up its place itself: for more, that had been there all the time.
            assert after.size > before.size
            assert min(rooms[after.at_s - grow_s : after.at_s + 1]) > before.size


@given(sizes=SIZES, room=st.integers(0, 3), wait_s=st.integers(0, 20))
def test_a_cluster_that_stays_as_it_is_has_the_run_on_what_there_is_after_the_wait(
    sizes: list[int], room: int, wait_s: int
) -> None:
    seconds = wait_s + 30
    starts = life(sizes, [room] * seconds, ResizeWaits(wait_for_spare_s=wait_s, grow_after_s=5))
    fits = [size for size in sizes if size <= room]
    assert [start.size for start in starts] == fits[-1:]
    assert all(start.at_s <= wait_s for start in starts)


@given(
    most=st.integers(1, 12),
    micro_batch=st.integers(1, 4),
    grad_accum=st.integers(1, 6),
    position=st.integers(0, 10**6),
)
def test_at_every_size_a_step_has_the_same_samples_each_once(
    most: int, micro_batch: int, grad_accum: int, position: int
) -> None:
    batch = DividedBatch(sequences=most * micro_batch * grad_accum, micro_batch=micro_batch)
    for size in sizes_between(1, most, batch):
        shares = [
            share_of_rank(
                position,
                rank=rank,
                world_size=size,
                micro_batch=micro_batch,
                grad_accum=batch.grad_accum(size),
            )
            for rank in range(size)
        ]
        read = sorted(place for of_rank in shares for share in of_rank for place in share)
        assert read == list(range(position, position + batch.sequences))
