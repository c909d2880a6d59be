"""A command that waits for a store says so, once for all that wait at the same time."""

import logging

import pytest

from checkpointing.stores import retrying
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.retrying import Waiter
from jobs.commandline.store_waits import waits_told


class Store:
    """Answers after so many refusals."""

    def __init__(self, num_refusals: int) -> None:
        self.num_refusals = num_refusals

    def answer(self) -> str:
        self.num_refusals -= 1
        if self.num_refusals >= 0:
            raise Unavailable("store: s3://bucket: 503 SlowDown")
        return "there"


def wait_for(store: Store) -> str:
    return Waiter(sleep=lambda seconds: None, spread=lambda: 0.5).wait_out(store.answer)


def test_a_wait_of_seconds_is_one_line_and_a_short_one_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with waits_told("report"):
        assert wait_for(Store(3)) == "there"
        assert capsys.readouterr().err == ""
        assert wait_for(Store(4)) == "there"
    printed = capsys.readouterr()
    assert (
        printed.err == "longhaul report: store: s3://bucket: 503 SlowDown; again in 3 s, given up in 300 s\n"
    )
    assert printed.out == ""


def test_waits_at_the_same_time_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with waits_told("pull"):
        for begun_s in (100.0, 100.1, 102.9, 103.0):
            record = {"msg": f"from {begun_s}", "levelno": logging.INFO, "created": begun_s, "wait_s": 3.0}
            logging.getLogger(retrying.__name__).handle(logging.makeLogRecord(record))
    assert capsys.readouterr().err == "longhaul pull: from 100.0\nlonghaul pull: from 103.0\n"


def test_nothing_is_told_outside_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with waits_told("report"):
        pass
    assert wait_for(Store(5)) == "there"
    assert capsys.readouterr().err == ""
