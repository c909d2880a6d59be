"""The store of a roll call, in which each word carries a MAC: its server takes words from everybody."""

from collections.abc import Callable, Sequence
from copy import copy
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from cluster.run_key import Refused, read, sign


class SignedStore:
    """torch's store, for one rank. Raises ``Refused`` where somebody without the ranks' key wrote or deleted.

    ``place`` says where the store is, and ``is_open`` whether other users can reach it. Numbers that ranks
    count carry no MAC: they prove nothing.
    """

    def __init__(self, store: Any, key: bytes, place: str, *, is_open: bool) -> None:
        self._store = store
        self._key = key
        self.place = place
        self.is_open = is_open
        self._own: list[str] = []

    def set(self, name: str, value: str) -> None:
        self._store.set(name, sign(self._key, _subject(name), value.encode()))
        self._own.append(name)

    def get(self, name: str) -> bytes:
        return read(self._key, _subject(name), self._store.get(name))

    def check(self, names: Sequence[str]) -> bool:
        return bool(self._store.check(names))

    def check_own(self) -> None:
        """Raises ``Refused`` if a word of this rank is gone: ranks delete none."""
        if not self._store.check(self._own):
            raise Refused("a word of this rank is gone")

    def add(self, name: str, amount: int) -> int:
        return int(self._store.add(name, amount))

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def clone(self) -> "SignedStore":
        again = copy(self)
        again._store = self._store.clone()
        return again


def in_time(ask: Callable[[], Any], within_s: float) -> Any:
    """Returns what ``ask`` returns. Raises what it raises, and ``RuntimeError`` if nothing is answered in
    time: torch waits for the first answer of a server, and for most others, without end.
    """
    answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def asks() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    Thread(target=asks, name="meeting", daemon=True).start()
    try:
        answer, error = answers.get(timeout=within_s)
    except Empty:
        text = f"no answer within {within_s:.0f} s, as if rank 0 had not come: look into its log"
        raise RuntimeError(text) from None
    if error is not None:
        raise error
    return answer


def _subject(name: str) -> tuple[str, str]:
    return ("roll call", name)
