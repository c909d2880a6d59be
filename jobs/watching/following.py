"""Reads something again and again in a thread of its own, for however many people look at it.

Nobody who looks waits for the store, and two who look cause no more reads than one. While nobody looks,
nothing is read.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from reporting.results.redaction import without_credentials

Value = TypeVar("Value", covariant=True)
# A page asks every second. After this time without a question nobody looks any more.
_WANTED_S = 30.0
_FIRST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Generic[Value]):
    """The newest value, how many seconds ago it was read, and why the last try failed, if it did.

    ``silent_s`` is how long a try has been going on without an answer.
    """

    value: Value | None
    age_s: float | None
    problem: str | None
    silent_s: float = 0.0


class Following(Generic[Value]):
    """Calls ``read`` every ``pause_s`` seconds, or less often: reading takes at most ``share`` of the time.

    Used as a context. Whatever ``read`` raises becomes the look's ``problem``; the last value stays.
    """

    def __init__(
        self,
        read: Callable[[], Value],
        *,
        pause_s: float,
        share: float = 0.5,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._pause_s = pause_s
        self._share = share
        self._ticks = ticks
        self._value: Value | None = None
        self._read_s: float | None = None
        self._began_s: float | None = None
        self._problem: str | None = None
        self._asked_s = ticks()
        self._wanted = threading.Event()
        self._has_tried = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="watch the store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A read that hangs keeps nobody: its thread ends with the process."""
        self._is_over = True
        self._wanted.set()
        self._thread.join(0.2)

    def look(self) -> Look[Value]:
        now = self._ticks()
        self._asked_s = now
        self._wanted.set()
        began_s = self._began_s
        return Look(
            value=self._value,
            age_s=None if self._read_s is None else max(0.0, now - self._read_s),
            problem=self._problem,
            silent_s=0.0 if began_s is None else max(0.0, now - began_s),
        )

    def first_look(self, timeout_s: float = _FIRST_S) -> Look[Value]:
        """The look after the first try, or after ``timeout_s`` if that takes longer."""
        self._has_tried.wait(timeout_s)
        return self.look()

    def is_idle(self) -> bool:
        """Whether nobody has looked for a while."""
        return self._ticks() - self._asked_s > _WANTED_S

    def pause_after(self, took_s: float) -> float:
        """Seconds until the next try, after one that took so long."""
        return max(self._pause_s, took_s / self._share - took_s)

    def _work(self) -> None:
        while not self._is_over:
            if self.is_idle():
                self._wanted.clear()
                # Who looked since has set it again, or is seen here.
                if self.is_idle() and not self._is_over:
                    self._wanted.wait()
                continue
            began_s = self._ticks()
            self._try(began_s)
            self._wait(self.pause_after(self._ticks() - began_s))

    def _wait(self, for_s: float) -> None:
        """Looks up often: the end must not wait."""
        end_s = time.monotonic() + for_s
        while not self._is_over and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.2))

    def _try(self, began_s: float) -> None:
        self._began_s = began_s
        try:
            value = self._read()
        except Exception as error:
            self._problem = _said(error)
        else:
            # As old as the moment when its reading began.
            self._value, self._read_s, self._problem = value, began_s, None
        finally:
            self._began_s = None
            self._has_tried.set()


def _said(error: Exception) -> str:
    text = type(error).__name__
    with suppress(Exception):
        text = str(error).partition("\n")[0] or text
    return without_credentials(text)[:500]
