"""Collects stop requests while a driver works: Ctrl-C, SIGTERM, SIGHUP, and ``longhaul stop`` through the
run's log.

``ray job stop`` and ``torchrun`` may send SIGTERM several times; the later ones mean the same as the first. A
terminal that closes sends SIGHUP.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Store, StoreError
from jobs.commandline.interrupts import heeded
from jobs.training.task.stop_request import StopRequest, stronger

_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 3.0
_CLOSE_TIMEOUT_S = 5.0
_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class StopSignals:
    """The stop requests of one driver. Entered in the main thread.

    Inside, the first Ctrl-C, every SIGTERM and every SIGHUP is a stop request. The second Ctrl-C raises
    ``KeyboardInterrupt``. A signal that the caller ignores, as ``nohup`` does, stays ignored.

    A process that ends with the block (``is_end``) asks that no signal changes how it ends: once there was a
    stop request, they have no effect after the block either.
    """

    def __init__(
        self,
        *,
        is_end: bool = False,
        look_every_s: float = _LOOK_EVERY_S,
        ask_every_s: float = _ASK_EVERY_S,
    ) -> None:
        self._is_end = is_end
        self._look_every_s = look_every_s
        self._ask_every_s = ask_every_s
        self.term: int | None = None
        self._stop_request: StopRequest | None = None
        self._num_ctrl_c = 0
        self._before: dict[int, Any] = {}
        self._listener: _Listener | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in heeded(tuple(_SIGNALS))}
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_listening()
        if self._is_end and self._stop_request is not None:
            return
        for number, before in self._before.items():
            signal.signal(number, before)

    def stop_request(self) -> StopRequest | None:
        """The stop request so far, or None. The call never waits, and a stop request is never taken back."""
        return self._stop_request

    def pause(self, for_s: float) -> StopRequest | None:
        """Waits ``for_s`` seconds, or returns early with a stop request."""
        end = time.monotonic() + for_s
        while (left_s := end - time.monotonic()) > 0:
            if self._stop_request is not None:
                return self._stop_request
            time.sleep(min(left_s, self._look_every_s))
        return None

    def listen(self, store: Store, run: str, announce: Callable[[str], None]) -> None:
        """Starts to read the run's log every few seconds. ``announce`` gets one line at the first stop
        request.
        """
        self._listener = _Listener(
            self, Repository(store, run), announce, self._look_every_s, self._ask_every_s
        )

    def stop_listening(self) -> None:
        """Nothing is announced from now on: what follows is the command's last line. Signals are heeded as
        before.
        """
        if self._listener:
            self._listener.close()

    def began(self, term: int) -> None:
        """From now on a stop request for the log's attempt ``term`` is meant for this driver."""
        self.term = term

    def hear(self, stop_request: StopRequest) -> None:
        self._stop_request = stronger(self._stop_request, stop_request)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler. It takes no lock: a signal may interrupt any code, also this handler."""
        self.hear(StopRequest(aim="stop", why=_SIGNALS[signal.Signals(number)]))
        self._num_ctrl_c += number == signal.SIGINT
        if self._num_ctrl_c > 1:
            raise KeyboardInterrupt


class _Listener:
    def __init__(
        self,
        stop_signals: StopSignals,
        repository: Repository,
        announce: Callable[[str], None],
        look_every_s: float,
        ask_every_s: float,
    ) -> None:
        self._look_every_s = look_every_s
        self._ask_every_s = ask_every_s
        self._stop_signals = stop_signals
        self._repository = repository
        self._announce = announce
        self._done = threading.Event()
        # What is asked may take minutes, and a signal is announced meanwhile.
        self._threads = [
            threading.Thread(target=work, name="longhaul-stop-signals", daemon=True)
            for work in (self._ask_again_and_again, self._work)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Waits a few seconds at most: a store that is away must not keep the driver from ending."""
        self._done.set()
        end_s = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _work(self) -> None:
        while not self._done.wait(self._look_every_s):
            if stop_request := self._stop_signals.stop_request():
                self._announce(_announcement(stop_request.why))
                return

    def _ask_again_and_again(self) -> None:
        while not self._done.wait(self._ask_every_s):
            self._ask()

    def _ask(self) -> None:
        with suppress(StoreError):
            view = self._repository.refresh()
            if view.stop_asked and view.term == self._stop_signals.term:
                self._stop_signals.hear(StopRequest(aim="stop", why="longhaul stop"))


def _announcement(why: str) -> str:
    if why == _SIGNALS[signal.SIGINT]:
        return f"{why}: it saves; a second Ctrl-C ends it at once"
    return f"{why}: it saves and ends at the next step; Ctrl-C twice ends it at once"
