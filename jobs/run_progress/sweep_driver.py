"""``sweeps/<sweep>/driver.json``: which start of a sweep is at work, so that two don't measure side by side.

They would disturb each other's times. The file says who its writer is, and changes every few seconds while
that one lives. A writer of this machine that is gone is known at once, one of another machine by its silence.
Clocks are not compared.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Conflict, Missing, Store, StoreError, check_name
from jobs.commandline.output import say
from jobs.commandline.usage_error import Occupied

_BEAT_EVERY_S = 3.0
# So many looks without a change, and the writer counts as gone.
_LOOK_EVERY_S = 1.0
_NUM_LOOKS = 12
# Of two that take over at the same moment, the one that wrote last has it after this time.
_SETTLE_S = 1.0
_MOST_BYTES = 4096


class SweepDriver:
    """Keeps other starts of the sweep away while this one works. Used as a context.

    Entering it raises ``Occupied`` if another start is at work. ``pause`` waits so many seconds.
    """

    def __init__(self, store: Store, sweep: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._sweep = sweep
        self._name = check_name(f"sweeps/{sweep}/driver.json")
        self._pause = pause
        self._own = secrets.token_hex(8)
        self._num_beats = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sweep driver", daemon=True)

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_BEAT_EVERY_S)
        with suppress(StoreError):
            if self._is_own(self._read()):
                self._store.delete(self._name)

    def _take(self) -> None:
        while True:
            found = self._read()
            if found is None:
                with suppress(Conflict):
                    self._store.create(self._name, self._beat())
                    return
                continue
            if not self._is_gone(found):
                raise Occupied([self._sentence(found)])
            self._store.put(self._name, self._beat())
            self._pause(_SETTLE_S)
            if self._is_own(self._read()):
                return

    def _is_gone(self, found: bytes) -> bool:
        told = _told(found)
        if (machine := _machine()) is not None and told.get("machine") == machine:
            return _started(told.get("pid")) != told.get("started")
        say(f"{self._sweep}: looks for {_NUM_LOOKS} s whether {_whose(told)} is still at work", to=sys.stderr)
        for _ in range(_NUM_LOOKS):
            self._pause(_LOOK_EVERY_S)
            if self._read() != found:
                return False
        return True

    def _work(self) -> None:
        while not self._done.wait(_BEAT_EVERY_S):
            with suppress(StoreError):
                found = self._read()
                if found is not None and not self._is_own(found):
                    say(f"{self._sweep}: {_whose(_told(found))} has taken it over", to=sys.stderr)
                    return
                self._store.put(self._name, self._beat())

    def _read(self) -> bytes | None:
        try:
            return get_bounded(self._store, self._name, most_bytes=_MOST_BYTES)
        except TooLarge:
            return b""
        except Missing:
            return None

    def _beat(self) -> bytes:
        self._num_beats += 1
        told = {
            "driver": self._own,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": _machine(),
            "started": _started(os.getpid()),
            "beat": self._num_beats,
        }
        return json.dumps(told).encode() + b"\n"

    def _is_own(self, found: bytes | None) -> bool:
        return found is not None and _told(found).get("driver") == self._own

    def _sentence(self, found: bytes) -> str:
        return (
            f"{self._sweep}: {_whose(_told(found))} is at work on it, and two would disturb each other's "
            "times; start this one again when that has ended, or give it another name (--set name=NAME)"
        )


def _told(found: bytes) -> Mapping[str, Any]:
    try:
        told = json.loads(found)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _whose(told: Mapping[str, Any]) -> str:
    host, pid = told.get("host"), told.get("pid")
    where = f" (process {pid} on {host[:60]})" if isinstance(host, str) and isinstance(pid, int) else ""
    return f"another start{where if where.isprintable() else ''}"


def _machine() -> str | None:
    """Names this boot of this machine, and the numbering of its processes; None where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: object) -> str | None:
    """When the process began, by the machine's count since its boot; None if there is none."""
    if not isinstance(pid, int) or isinstance(pid, bool):
        return None
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None
