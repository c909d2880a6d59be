"""Threads that go on one at a time, in an order that a seed decides, on a clock of their own.

A thread gives its turn away where it touches what others touch too: a lock, an event, a queue, the clock, a
message, a file. So the same seed gives the same order of everything. ``standing_in`` puts the threads, locks
and clocks here into modules that use Python's.

The clock goes on by a little with each turn. It jumps to the next deadline if nobody can go on otherwise, and
sometimes, if the seed has it so, although somebody could: that one was slow.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

_REAL_DEADLINE_S = 60.0
_TURN_S = 0.001
# What is waited for longer than a save is does not come too late because somebody is slow.
_LONGEST_JUMP_S = 100.0
_BEGAN_S = 1.7e9
# A schedule has some hundred turns. One that does not end has more.
_MOST_TURNS = 100_000


class Over(BaseException):
    """Its process is killed, or the schedule is over."""


class Stuck(AssertionError):
    """Nobody can ever go on, or all go on for ever."""


@dataclass(eq=False, slots=True)
class Process:
    """Threads that are killed together."""

    name: str
    is_killed: bool = False


@dataclass(eq=False, slots=True)
class _Thread:
    process: Process
    name: str
    weight: float
    is_urgent: bool = False
    is_done: bool = False
    is_ready: Callable[[], bool] | None = None
    deadline_s: float | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None


class Turns:
    """``jumps`` is the share of turns before which the clock jumps although somebody could go on."""

    def __init__(self, rng: random.Random, *, jumps: float = 0.0) -> None:
        self.now_s = 0.0
        self.num_turns = 0
        self.story: deque[str] = deque(maxlen=5000)
        self._rng = rng
        self.jumps = jumps
        self._threads: list[_Thread] = []
        self._here = threading.local()
        self._back = threading.Semaphore(0)
        self._problem: BaseException | None = None

    @property
    def process(self) -> Process | None:
        """That of the calling thread; None of a thread that has no turns."""
        own = self._own
        return own.process if own else None

    @property
    def _own(self) -> _Thread | None:
        own: _Thread | None = getattr(self._here, "own", None)
        return own

    def run(self, act: Callable[[], None]) -> None:
        """Runs ``act`` and all threads that it starts, until it has ended; kills what is left then.

        ``act`` goes on as soon as it can.
        """
        director = Process("director")
        self.start(act, process=director, name="act", is_urgent=True)
        self._pass_on()
        assert self._back.acquire(timeout=_REAL_DEADLINE_S), f"no thread came back: {[*self.story][-5:]}"
        for process in {thread.process for thread in self._threads}:
            self.kill(process)
        if self._problem:
            raise self._problem

    def start(
        self, act: Callable[[], None], *, process: Process, name: str, is_urgent: bool = False
    ) -> Callable[[], bool]:
        """The thread begins when it gets a turn. Returns what says whether it has ended."""
        # Some hardly get a turn before others are done: uniform orders are all alike.
        own = _Thread(process=process, name=name, weight=self._rng.random() ** 3 + 0.01, is_urgent=is_urgent)
        own.turn.acquire()
        own.thread = threading.Thread(target=self._live, args=(own, act), name=name, daemon=True)
        self._threads.append(own)
        own.thread.start()
        return lambda: own.is_done

    def kill(self, process: Process) -> None:
        """Its threads do nothing any more. Not from one of them."""
        process.is_killed = True
        for thread in [*self._threads]:
            if thread.process is process and thread is not self._own:
                assert thread.thread is not None
                thread.turn.release()
                thread.thread.join(_REAL_DEADLINE_S)
                assert thread.is_done, f"{thread.name} goes on though it was killed"

    def pause(self, what: str) -> None:
        """Lets others go first, or not."""
        self.wait(what, None)

    def wait(self, what: str, is_ready: Callable[[], bool] | None, *, timeout_s: float | None = None) -> bool:
        """Waits until ``is_ready``; returns False if it is not within ``timeout_s``."""
        own = self._own
        if own is None:
            return is_ready is None or is_ready()
        if own.process.is_killed:
            raise Over
        self.story.append(f"{own.process.name} {own.name}: {what}")
        own.is_ready = is_ready
        own.deadline_s = None if timeout_s is None else self.now_s + timeout_s
        self._pass_on(own)
        if own.process.is_killed:
            raise Over
        is_there = is_ready is None or is_ready()
        own.is_ready = own.deadline_s = None
        return is_there

    def _live(self, own: _Thread, act: Callable[[], None]) -> None:
        self._here.own = own
        own.turn.acquire()
        try:
            if not own.process.is_killed:
                act()
        except Over:
            pass
        except BaseException as error:
            self._problem = self._problem or error
        own.is_done = True
        self._threads.remove(own)
        if own.process.is_killed:
            return  # Who killed it has the turn.
        if own.is_urgent or self._problem:
            self._back.release()
        else:
            self._pass_on()

    def _pass_on(self, own: _Thread | None = None) -> None:
        try:
            chosen = self._next()
        except Stuck as error:
            self._problem = error
            self._back.release()
            if own:
                own.turn.acquire()
            return
        if chosen is not own:
            chosen.turn.release()
            if own:
                own.turn.acquire()

    def _next(self) -> _Thread:
        self.num_turns += 1
        if self.num_turns > _MOST_TURNS:
            raise Stuck("it does not end")
        self.now_s += _TURN_S
        while True:
            able, late_s = [], None
            for one in self._threads:
                if one.is_done:
                    continue
                deadline_s = one.deadline_s
                if one.is_ready is None or one.is_ready() or (deadline_s and self.now_s >= deadline_s):
                    if one.is_urgent:
                        return one
                    able.append(one)
                if deadline_s and (late_s is None or deadline_s < late_s):
                    late_s = deadline_s
            is_slow = late_s and self.jumps and late_s < self.now_s + _LONGEST_JUMP_S
            if late_s and (not able or (is_slow and self._rng.random() < self.jumps)):
                self.now_s = max(self.now_s, late_s)
            if able:
                return able[0] if len(able) == 1 else self._drawn(able)
            if late_s is None:
                waiting = ", ".join(f"{one.process.name} {one.name}" for one in self._threads)
                raise Stuck(f"nobody can go on: {waiting}")

    def _drawn(self, able: list[_Thread]) -> _Thread:
        place = self._rng.random() * sum([one.weight for one in able])
        for one in able:
            place -= one.weight
            if place <= 0:
                return one
        return able[-1]


@contextmanager
def standing_in(turns: Turns, modules: dict[ModuleType, tuple[str, ...]]) -> Iterator[pytest.MonkeyPatch]:
    """Inside, the named things of ``modules`` are those here."""
    things: dict[str, Any] = {
        "Lock": lambda: _Lock(turns),
        "RLock": lambda: _Lock(turns),
        "Condition": lambda lock=None: _Condition(turns, lock or _Lock(turns)),
        "Event": lambda: _Event(turns),
        "Thread": lambda **how: _Starting(turns, **how),
        "SimpleQueue": _Queues(turns),
    }
    things["threading"] = SimpleNamespace(**things)
    things["time"] = SimpleNamespace(
        monotonic=lambda: turns.now_s,
        perf_counter=lambda: turns.now_s,
        time=lambda: _BEGAN_S + turns.now_s,
        sleep=lambda time_s: turns.wait("sleep", lambda: time_s <= 0, timeout_s=time_s),
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, names in modules.items():
            for name in names:
                patch.setattr(module, name, things[name])
        yield patch


class _Lock:
    """One that its thread may take again."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.owner: int | None = None
        self.depth = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        me = threading.get_ident()
        if self.owner != me:
            if not blocking and self.owner is not None:
                return False
            self._turns.wait("lock", lambda: self.owner is None)
            self.owner = me
        self.depth += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self.owner = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, turns: Turns, lock: _Lock) -> None:
        self._turns = turns
        self._lock = lock
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        assert self._lock.owner == threading.get_ident()
        for one in self._waiting:
            one[0] = True

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        end_s = None if timeout_s is None else self._turns.now_s + timeout_s
        while not is_so():
            left_s = None if end_s is None else end_s - self._turns.now_s
            if left_s is not None and left_s <= 0:
                break
            self._wait(left_s)
        return is_so()

    def _wait(self, timeout_s: float | None) -> None:
        is_told = [False]
        self._waiting.append(is_told)
        depth, self._lock.depth, self._lock.owner = self._lock.depth, 0, None
        self._turns.wait("condition", lambda: is_told[0], timeout_s=timeout_s)
        self._waiting.remove(is_told)
        self._turns.wait("lock", lambda: self._lock.owner is None)
        self._lock.depth, self._lock.owner = depth, threading.get_ident()


class _Event:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._turns.wait("event", self.is_set, timeout_s=timeout_s)


class _Starting:
    """A thread of the process of the thread that makes it."""

    def __init__(
        self, turns: Turns, *, target: Callable[..., None], args: tuple[Any, ...] = (), **how: Any
    ) -> None:
        self._turns = turns
        self._act = lambda: target(*args)
        self._name = how["name"]

    def start(self) -> None:
        process = self._turns.process
        assert process is not None
        self._turns.start(self._act, process=process, name=self._name)


class _Queues:
    """Stands for the type of queues, also where it is written with what they hold."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __getitem__(self, _of: object) -> "_Queues":
        return self

    def __call__(self) -> "_Queue":
        return _Queue(self._turns)


class _Queue:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()

    def put(self, item: object) -> None:
        self._items.append(item)

    def get(self) -> Any:
        self._turns.wait("queue", lambda: bool(self._items))
        return self._items.popleft()
