"""A transfer lives as long as something moves, and touches nothing once it was given up."""

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from checkpointing.stores.transfers import (
    Download,
    Stalled,
    TransferProgress,
    UploadFeed,
    finish,
    side_by_side,
)

ROOT = Path(__file__).parents[3]
STALL_S = 0.2
GIVEN_UP_WITHIN_S = 5


def test_what_work_comes_to_is_handed_back() -> None:
    assert finish(lambda: 7, TransferProgress(STALL_S)) == 7


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        finish(work, TransferProgress(STALL_S))


def test_work_in_which_nothing_moves_is_given_up() -> None:
    let_go = threading.Event()
    began = time.monotonic()
    try:
        with pytest.raises(Stalled, match=r"nothing moved for 0\.2 s"):
            finish(let_go.wait, TransferProgress(STALL_S))
        assert STALL_S <= time.monotonic() - began < GIVEN_UP_WITHIN_S
    finally:
        let_go.set()


def test_work_that_was_given_up_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading\n"
        "from checkpointing.stores.transfers import TransferProgress, Stalled, finish\n"
        "try: finish(threading.Event().wait, TransferProgress(0.1))\n"
        "except Stalled: print('told')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "told\n"


def test_work_that_lasts_longer_than_the_deadline_is_not_given_up_while_it_moves() -> None:
    deadline_s = 1.0  # A busy machine may not wake a thread for a while.
    progress = TransferProgress(deadline_s)
    never = threading.Event()

    def work() -> str:
        for _ in range(12):
            never.wait(deadline_s / 10)
            progress.moved()
        return "done"

    began = time.monotonic()
    assert finish(work, progress) == "done"
    assert time.monotonic() - began > deadline_s


def test_items_are_worked_on_side_by_side_up_to_a_number_and_answered_in_order() -> None:
    meeting = threading.Barrier(3, timeout=GIVEN_UP_WITHIN_S)

    def work(item: int) -> int:
        meeting.wait()  # passes only when three are under way
        return item * item

    assert list(side_by_side(work, range(6), at_once=3)) == [0, 1, 4, 9, 16, 25]


def test_after_an_item_that_failed_no_further_one_is_begun() -> None:
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        list(side_by_side(work, range(100), at_once=2))
    assert set(begun) <= {0, 1}


def test_a_feed_gives_the_whole_in_chunks_and_each_chunk_is_progress() -> None:
    now_s = 0.0
    progress = TransferProgress(10, clock=lambda: now_s)
    feed = UploadFeed(memoryview(b"0123456789"), 4, progress)
    now_s = 9.0
    assert next(feed) == b"0123"
    assert progress.left_s() == 10
    assert list(feed) == [b"4567", b"89"]


def test_a_feed_that_was_closed_reads_the_buffer_no_more() -> None:
    data = bytearray(b"0123456789")
    feed = UploadFeed(memoryview(data), 4, TransferProgress(10))
    next(feed)
    feed.close()
    data.clear()  # raises while anyone still holds the buffer
    with pytest.raises(Stalled):
        next(feed)


def test_a_landing_that_was_closed_writes_the_buffer_no_more() -> None:
    into = bytearray(b"......")
    landing = Download(memoryview(into), TransferProgress(10))
    assert landing.write(2, b"ab") == 2
    landing.close()
    with pytest.raises(Stalled):
        landing.write(4, b"cd")
    assert into == b"..ab.."
    into.clear()  # raises while anyone still holds the buffer


def test_after_ten_silent_seconds_the_log_says_once_what_for_and_until_when(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    progress = TransferProgress(30, place="store: s3://bucket", clock=lambda: now[0])
    with caplog.at_level(logging.INFO):
        for now[0] in (9.0, 10.0, 11.0, 29.0):
            progress.tell()
        assert caplog.messages == ["store: s3://bucket: no answer for 10 s, given up in 20 s"]
        progress.moved()
        for now[0] in (38.0, 39.0, 40.0):
            progress.tell()
    assert caplog.messages[1:] == ["store: s3://bucket: no answer for 10 s, given up in 20 s"]


def test_a_transfer_that_hangs_is_told_of_before_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    progress = TransferProgress(STALL_S, place="store: s3://bucket", told_after_s=STALL_S / 4)
    with caplog.at_level(logging.INFO), pytest.raises(Stalled, match=r"nothing moved for 0\.2 s"):
        finish(go_on.wait, progress)
    go_on.set()
    assert caplog.messages == ["store: s3://bucket: no answer for 0 s, given up in 0 s"]
