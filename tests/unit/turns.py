"""Several actors on one store, one storage call at a time, in an order that a seed decides.

Each actor is a thread that is let go for one call at a time and runs on to its next one, alone. So the same
seed gives the same order of everything, and the next line of an actor is only as near as its next call.
"""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from checkpointing.stores.contract import Buffer, Store, Unavailable

Answer = TypeVar("Answer")

_DEADLINE_S = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Actor:
    name: str
    weight: float
    turn: threading.Lock = field(default_factory=threading.Lock)
    is_done: bool = False
    outcome: object = None


class _Over(BaseException):
    """One actor hangs, so no other is let go any more."""


class Turns:
    """``flaky`` is the share of calls that end in ``Unavailable``, half of them after they landed."""

    def __init__(self, store: Store, rng: random.Random, *, flaky: float = 0.0) -> None:
        self.story: list[str] = []
        self._store = store
        self._rng = rng
        self._flaky = flaky
        self._actors: list[_Actor] = []
        self._is_running = False
        self._is_over = False
        self._back = threading.Lock()
        self._back.acquire()

    def add(self, name: str, act: Callable[[Store], object], *, head_start: int = 0) -> None:
        """Runs ``act`` until its first storage call, or after ``head_start`` calls that do not fail.

        The store that it is given is for it alone.
        """
        # Some actors hardly get a turn before others are done: uniform orders are all alike.
        actor = _Actor(name=name, weight=self._rng.random() ** 3 + 0.001)
        actor.turn.acquire()
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor, act), name=name, daemon=True).start()
        self._wait(actor)
        for _ in range(head_start):
            actor.turn.release()
            self._wait(actor)

    def run(self) -> dict[str, object]:
        """Until all are done: what each returned, or the exception that ended it."""
        self._is_running = True
        while alive := [actor for actor in self._actors if not actor.is_done]:
            (actor,) = self._rng.choices(alive, [actor.weight for actor in alive])
            actor.turn.release()
            self._wait(actor)
        return {actor.name: actor.outcome for actor in self._actors}

    def take(self, actor: _Actor, call: str, do: Callable[[], Answer]) -> Answer:
        """One call of ``actor``, once it is its turn: after all others are done, where the seed has it so."""
        if not self._is_over:
            self._back.release()
            actor.turn.acquire()
        if self._is_over:
            raise _Over
        self.story.append(f"{actor.name}: {call}")
        if not self._is_running or self._rng.random() >= self._flaky:
            return do()
        if self._rng.random() < 0.5:
            do()
            self.story[-1] += " (landed, but no answer)"
        else:
            self.story[-1] += " (did not land)"
        raise Unavailable(call)

    def _live(self, actor: _Actor, act: Callable[[Store], object]) -> None:
        try:
            actor.outcome = act(_TurnStore(self._store, self, actor))
        except BaseException as error:
            actor.outcome = error
        actor.is_done = True
        if not self._is_over:
            self._back.release()

    def _wait(self, actor: _Actor) -> None:
        try:
            assert self._back.acquire(timeout=_DEADLINE_S), f"{actor.name} never came back"
        except BaseException:
            self._is_over = True
            for one in self._actors:
                if one.turn.locked():
                    one.turn.release()
            raise


class _TurnStore:
    def __init__(self, inner: Store, turns: Turns, actor: _Actor) -> None:
        self.url = inner.url
        self._inner = inner
        self._turns = turns
        self._actor = actor

    def probe(self) -> None:
        self._turns.take(self._actor, "probe", self._inner.probe)

    def put(self, name: str, data: Buffer) -> None:
        self._turns.take(self._actor, f"put {name}", lambda: self._inner.put(name, data))

    def create(self, name: str, data: Buffer) -> None:
        self._turns.take(self._actor, f"create {name}", lambda: self._inner.create(name, data))

    def get(self, name: str) -> bytes:
        return self._turns.take(self._actor, f"get {name}", lambda: self._inner.get(name))

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return self._turns.take(
            self._actor, f"get_range {name}", lambda: self._inner.get_range(name, start, into)
        )

    def size(self, name: str) -> int:
        return self._turns.take(self._actor, f"size {name}", lambda: self._inner.size(name))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        names = self._turns.take(
            self._actor, f"list {prefix}", lambda: [*self._inner.list(prefix, after=after)]
        )
        return iter(names)

    def delete(self, name: str) -> None:
        self._turns.take(self._actor, f"delete {name}", lambda: self._inner.delete(name))
