"""What is started deaf hears no stop signal, nor does what it starts; who starts it hears as before."""

import signal
import subprocess
import sys

import pytest

from cluster.signals import STOP_SIGNALS, deaf_children

# A shell that starts another program, which says what it blocks.
SAYS_WHAT_IT_BLOCKS = ["bash", "-c", "grep SigBlk /proc/self/status; true"]


def blocked_in_a_child() -> set[int]:
    done = subprocess.run(SAYS_WHAT_IT_BLOCKS, check=True, capture_output=True, text=True)
    mask = int(done.stdout.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_children_are_deaf_inside_the_block_alone() -> None:
    before = blocked_in_a_child()
    with deaf_children():
        inside = blocked_in_a_child()
    assert inside == before | {signal.SIGTERM, signal.SIGHUP} != before
    assert blocked_in_a_child() == before


def test_this_thread_hears_again_also_after_an_error() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(OSError, match="not there"), deaf_children():
        raise OSError("not there")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize("number", sorted(STOP_SIGNALS))
def test_what_came_meanwhile_is_heard_when_the_block_ends(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda found, _frame: heard.append(found))
    try:
        with deaf_children():
            signal.raise_signal(number)
            assert heard == []
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_a_command_that_is_not_there_is_named() -> None:
    program = "from cluster.signals import become_deaf; become_deaf(['lh-nobody-has-it'])"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("there is no lh-nobody-has-it on PATH, which is /")
