"""A transfer lives as long as something moves, and touches nothing once it was given up."""

import asyncio
import threading
import time

import pytest

from checkpointing.transfers import Feed, Landing, Progress, Stalled, finish

STALL_S = 0.2
GIVEN_UP_WITHIN_S = 5


async def hang() -> None:
    await asyncio.Event().wait()


def test_what_work_comes_to_is_handed_back() -> None:
    async def work() -> int:
        return 7

    assert finish(work(), Progress(STALL_S)) == 7


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        finish(work(), Progress(STALL_S))


def test_work_in_which_nothing_moves_is_given_up_and_cancelled() -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await hang()
        finally:
            cancelled.set()

    began = time.monotonic()
    with pytest.raises(Stalled, match=r"nothing moved for 0\.2 s"):
        finish(work(), Progress(STALL_S))
    assert STALL_S <= time.monotonic() - began < GIVEN_UP_WITHIN_S
    assert cancelled.wait(timeout=GIVEN_UP_WITHIN_S)


def test_work_that_lasts_longer_than_the_deadline_is_not_given_up_while_it_moves() -> None:
    progress = Progress(STALL_S)

    async def work() -> str:
        for _ in range(8):
            await asyncio.sleep(STALL_S / 4)
            progress.moved()
        return "done"

    began = time.monotonic()
    assert finish(work(), progress) == "done"
    assert time.monotonic() - began > STALL_S


def test_the_caller_is_let_go_even_when_the_library_blocks_everything() -> None:
    let_go = threading.Event()

    async def work() -> None:
        let_go.wait(timeout=GIVEN_UP_WITHIN_S)

    try:
        with pytest.raises(Stalled):
            finish(work(), Progress(STALL_S))
    finally:
        let_go.set()


def test_a_feed_gives_the_whole_in_chunks_and_each_chunk_is_progress() -> None:
    now_s = 0.0
    progress = Progress(10, clock=lambda: now_s)
    feed = Feed(memoryview(b"0123456789"), 4, progress)
    now_s = 9.0
    assert next(feed) == b"0123"
    assert progress.left_s() == 10
    assert list(feed) == [b"4567", b"89"]


def test_a_feed_that_was_closed_reads_the_buffer_no_more() -> None:
    data = bytearray(b"0123456789")
    feed = Feed(memoryview(data), 4, Progress(10))
    next(feed)
    feed.close()
    data.clear()  # raises while anyone still holds the buffer
    with pytest.raises(Stalled):
        next(feed)


def test_a_landing_that_was_closed_writes_the_buffer_no_more() -> None:
    into = bytearray(b"......")
    landing = Landing(memoryview(into), Progress(10))
    assert landing.write(2, b"ab") == 2
    landing.close()
    with pytest.raises(Stalled):
        landing.write(4, b"cd")
    assert into == b"..ab.."
    into.clear()  # raises while anyone still holds the buffer
