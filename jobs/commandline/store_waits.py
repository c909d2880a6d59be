"""Nobody waits for a store in silence: a command says on standard error what for, and until when.

A command that only reads gives up after the seconds of its ``--wait``, which are 30 unless it is told others.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from checkpointing.stores import retrying, transfers
from checkpointing.stores.contract import Store
from checkpointing.stores.opening import open_store
from checkpointing.stores.retrying import RetryLimits
from jobs.commandline.output import one_line, say
from jobs.commandline.store_location import store_base

# Shorter waits are not worth a line.
_LEAST_S = 2.0
# Whoever waits at a terminal is asked for again more often than a save that waits for minutes.
_LONGEST_WAIT_S = 5.0


@contextmanager
def waits_told(command: str) -> Iterator[None]:
    """Prints what the store answered and when it is asked again, each time that takes a while; and after
    10 s without an answer, what is waited for and until when.
    """
    teller = _Teller(command)
    logs = [logging.getLogger(module.__name__) for module in (retrying, transfers)]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.INFO)
        log.addHandler(teller)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.removeHandler(teller)
            log.setLevel(level)


def open_to_read(url: str, wait_s: float, *, advice: str = "--wait SECONDS waits longer") -> Store:
    """Returns the store for a command that only reads. A call ends after ``wait_s`` without an answer."""
    patience = RetryLimits(budget_s=wait_s, longest_wait_s=_LONGEST_WAIT_S, is_from_start=True, advice=advice)
    return open_store(url, base=store_base(), patience=patience)


class _Teller(logging.Handler):
    """Of readers that wait at the same time, the first one's wait is told."""

    def __init__(self, command: str) -> None:
        super().__init__(logging.INFO)
        self._command = command
        self._told_until_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        wait_s = getattr(record, "wait_s", 0.0)
        if wait_s >= _LEAST_S and record.created >= self._told_until_s:
            self._told_until_s = record.created + wait_s
            say(one_line(f"longhaul {self._command}: {record.getMessage()}"), to=sys.stderr)
