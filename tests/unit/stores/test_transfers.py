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
    LinkRate,
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


def test_a_part_of_a_landing_is_closed_by_itself_or_with_the_whole() -> None:
    into = bytearray(b"......")
    landing = Download(memoryview(into), TransferProgress(10))
    first, second = (landing.part(range(at, at + 3), TransferProgress(10)) for at in (0, 3))
    first.close()
    with pytest.raises(Stalled):
        first.write(0, b"a")
    assert second.write(1, b"bc") == 2
    landing.close()
    with pytest.raises(Stalled):
        second.write(0, b"d")
    with pytest.raises(Stalled):
        landing.part(range(1), TransferProgress(10))
    assert into == b"....bc"
    into.clear()  # raises while anyone still holds the buffer


def test_a_link_is_trusted_with_half_of_what_it_moved_and_with_less_once_it_stood_still() -> None:
    link = LinkRate(guess=300_000)
    assert link.takes_s(600_000) == 2
    link.moved(10_000_000, 1.0)
    assert (link.bytes_per_s, link.stream_bytes) == (5_000_000, 1 << 20)
    link.moved(100, 50.0)  # says nothing about a link
    assert link.bytes_per_s == 5_000_000
    link.stood_still()
    assert (link.bytes_per_s, link.stream_bytes) == (150_000, 150_000)
    link.moved(70_000, 7.0)
    assert (link.bytes_per_s, link.stream_bytes) == (5_000, 16 << 10)
    link.moved(70_000, 0.0)
    for _ in range(50):
        link.stood_still()
    assert link.bytes_per_s == 1_000
    link.moved(70_000, 7000.0)
    assert link.bytes_per_s == 1_000


@pytest.mark.parametrize("bytes_per_s", [5e3, 1e4, 3e4, 1e5, 1e6])
def test_no_steady_link_is_slow_enough_to_be_ended_each_time(bytes_per_s: float) -> None:
    """Four streams share it, so that four pieces come at the end of each silence."""
    link, waits_s = LinkRate(), []
    for _ in range(6):
        silence_s = 4 * link.stream_bytes / bytes_per_s
        waits_s.append(25 + link.takes_s(4 * link.stream_bytes))
        if silence_s < waits_s[-1]:
            break
        link.stood_still()
    assert silence_s < waits_s[-1]
    assert waits_s[0] < 30


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
