"""Says on standard error that a command waits for a store: without a word it would look hung."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from checkpointing.stores import retrying
from jobs.commandline.output import one_line, say

# Shorter waits are not worth a line.
_LEAST_S = 2.0


@contextmanager
def waits_told(command: str) -> Iterator[None]:
    """Prints what the store answered and when it is asked again, each time that takes a while."""
    log, teller = logging.getLogger(retrying.__name__), _Teller(command)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(teller)
    try:
        yield
    finally:
        log.removeHandler(teller)
        log.setLevel(level)


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
