"""A call that may never return."""

import threading

import pytest

from checkpointing.stores.transfers import within


def test_what_a_call_returns_or_raises_is_its_own() -> None:
    assert within(10, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0)


def test_a_call_that_never_returns_is_waited_for_no_longer_than_asked() -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        within(0.1, threading.Event().wait)
