"""Signals that interrupt a command as Ctrl-C does."""

import os
import signal
import threading

import pytest

from jobs.commandline.interrupts import interrupting_signals

BOTH = (signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", BOTH)
def test_it_interrupts_and_afterwards_signals_are_whose_they_were(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in BOTH]
    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(one) for one in BOTH] == before


def test_what_python_makes_of_an_interruption_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as interrupted:
            raise RuntimeError("Error calling __set_name__") from interrupted


def test_an_error_of_its_own_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="itself"), interrupting_signals():
        raise ValueError("itself")


def test_what_nohup_ignores_interrupts_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_has_no_signals_to_take() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with interrupting_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(20)
    assert found == [before]
