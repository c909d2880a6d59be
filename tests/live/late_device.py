"""A device on this CPU that does nothing before somebody waits for it: a missing wait shows as wrong numbers.

Its tensors have the device type ``lazy``, which torch knows and no build of it has. Each operation on them is
launched: it takes its place in its stream, and its result is ``POISON`` until then. Copies that don't block
read and write the host's memory as late, whichever memory it is. Where torch would wait for a real device, to
read a number or to copy without ``non_blocking``, this one does the work of that stream and counts a wait.

Streams are in order each; among them the seed decides. A launched operation lasts a millisecond.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, UntypedStorage
from torch._C._distributed_c10d import FakeWork, Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import all_gather_copy_in_cuda
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from cluster.probe import door

LATE = torch.device("lazy", 0)
POISON = 77
# More than the copies of a step's batches, less than a step.
FEW = 8
_HOST, _SHAPES = torch.device("cpu"), torch.device("meta")
_COPIES = ("aten::copy_", "aten::_foreach_copy_", "aten::_to_copy")


class LateTensor(torch.Tensor):
    """``memory`` is what has landed of it."""

    memory: Tensor
    late: LateDevice

    @staticmethod
    def __new__(cls, memory: Tensor, late: LateDevice) -> LateTensor:
        found: LateTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined] # torch does not say
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=LATE,
        )
        found.memory, found.late = memory, late
        return found

    @property  # type: ignore[override] # torch's is a property in C++
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: LateTensor) -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined] # of C++, too
        self.memory = other.memory

    def untyped_storage(self) -> LateStorage:  # type: ignore[override] # a wrapper's own has no memory
        return LateStorage(self.memory.untyped_storage(), self.late)

    def record_stream(self, stream: LateStream) -> None:  # type: ignore[override] # a stream of ours
        """All memory that was given out stays as it is."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        late = next(one.late for one in tree_iter((args, kwargs)) if isinstance(one, LateTensor))
        return late.launch(func, args, kwargs or {})


class LateStorage:
    """As torch's. What is freed keeps its memory, in which nothing of it is found once that has landed."""

    def __init__(self, memory: UntypedStorage, late: LateDevice) -> None:
        self._memory = memory
        self._late = late

    def data_ptr(self) -> int:
        return self._memory.data_ptr()

    def nbytes(self) -> int:
        return 0 if self.data_ptr() in self._late.freed else self._memory.nbytes()

    size = nbytes

    def resize_(self, num_bytes: int) -> None:
        if num_bytes:
            self._late.freed.pop(self.data_ptr())
            return
        self._late.freed[self.data_ptr()] = self._memory  # Kept, so that no other memory gets its address.
        self._late.enqueue(partial(self._memory.fill_, POISON))


class LateEvent:
    """As torch's, with the device's time in milliseconds."""

    def __init__(self, late: LateDevice) -> None:
        self._late = late
        self._at: int | None = None

    def record(self) -> None:
        self._at = None
        self.stream = self._late.stream
        self._late.enqueue(self._pass)

    def query(self) -> bool:
        return self._at is not None

    def synchronize(self) -> None:
        """Does the work before this event, and as much of other streams as the seed says."""
        is_late = self._at is None
        self._late.work(lambda: self._at is None, self.stream)
        if threading.get_ident() == self._late.owner:
            self._late.events_waited_for += 1
            self._late.starved += is_late and self._late.num_pending < FEW

    def elapsed_time(self, end: LateEvent) -> float:
        if self._at is None or end._at is None:
            raise RuntimeError("an event has not passed yet")
        return float(end._at - self._at)

    def _pass(self) -> None:
        self._at = self._late.now


class LateStream:
    """As torch's: what is launched inside of it takes its place there."""

    def __init__(self, late: LateDevice, number: int) -> None:
        self._late = late
        self._number = number

    def __enter__(self) -> None:
        self._outside = self._late.on_stream(self._number)
        self._outside.__enter__()

    def __exit__(self, *_: object) -> None:
        self._outside.__exit__(None, None, None)

    def record_event(self) -> LateEvent:
        event = LateEvent(self._late)
        with self._late.on_stream(self._number):
            event.record()
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def wait_event(self, event: LateEvent) -> None:
        with self._late.on_stream(self._number):
            self._late.enqueue(lambda: self._late.work_until(event))

    def wait_stream(self, other: LateStream) -> None:
        self.wait_event(other.record_event())


class LateDevice:
    """``waits`` counts the waits for all its work or all of a stream, ``events_waited_for`` those for one
    event. ``unpinned`` counts copies with host memory that is not pinned, for which a real device might
    have waited. ``starved`` counts the waits for an event after which the device had not ``FEW`` operations
    to do. Events count in the thread that made this object.
    """

    def __init__(self, seed: int) -> None:
        self.waits = self.events_waited_for = self.unpinned = self.starved = self.now = 0
        self._pinned: list[Tensor] = []
        self.freed: dict[int, UntypedStorage] = {}
        self.stream = 0
        self.owner = threading.get_ident()
        self._random = Random(seed)
        self._draws = torch.Generator().manual_seed(seed).get_state()
        self._streams: dict[int, deque[Callable[[], None]]] = {}
        self._lock = threading.RLock()

    @property
    def num_pending(self) -> int:
        return sum(map(len, self._streams.values()))

    def tensor(self, memory: Tensor) -> LateTensor:
        """A tensor of this device with the values of ``memory``, which are there."""
        return LateTensor(memory.detach().clone(), self)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes this device one of those that torch knows."""
        kind = SimpleNamespace(
            Event=lambda enable_timing: LateEvent(self),
            get_device_name=lambda device: "Late Device",
            get_device_properties=lambda device: SimpleNamespace(uuid="late"),
            get_rng_state=lambda device: self._draws.clone(),
            manual_seed=self._seed,
            memory_allocated=lambda device: 0,
            memory_reserved=lambda device: 0,
            set_rng_state=self._set_draws,
            synchronize=lambda device: self.synchronize(),
        )
        monkeypatch.setitem(door.KINDS, LATE.type, kind)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: self.synchronize())
        numbers = count(1)
        monkeypatch.setattr(torch, "Stream", lambda device: LateStream(self, next(numbers)))
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: LateStream(self, self.stream))
        # Optimizers ask it whether their fused kernels are there for this kind of device.
        monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: LATE.type)

        def pin(memory: Tensor) -> Tensor:
            # Kept, so that no other memory gets its address.
            self._pinned.append(memory.clone())
            return self._pinned[-1]

        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)

    def synchronize(self) -> None:
        self.waits += 1
        self.work(lambda: True, None)

    def _wait_for_stream(self) -> None:
        """As who reads a number: not for other streams, of which as much is done as the seed says."""
        self.waits += 1
        event = LateEvent(self)
        event.record()
        self.work(lambda: not event.query(), self.stream)

    @contextmanager
    def on_stream(self, number: int) -> Iterator[None]:
        before, self.stream = self.stream, number
        yield
        self.stream = before

    @contextmanager
    def present(self) -> Iterator[None]:
        """Inside, this thread can make tensors on the device, also from the host's."""
        with _Factories(self):
            yield

    def _seed(self, number: int) -> None:
        self._draws = torch.Generator().manual_seed(number).get_state()

    def _set_draws(self, state: Tensor, device: torch.device) -> None:
        self._draws = state.clone()

    def enqueue(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._streams.setdefault(self.stream, deque()).append(work)

    def work(self, is_wanted: Callable[[], bool], stream: int | None) -> None:
        """Works while ``is_wanted`` and there is work in ``stream``, which is any if it is None."""
        with self._lock, _disable_current_modes():
            while is_wanted() and (busy := [number for number, works in self._streams.items() if works]):
                number = self.next_of(busy)
                if stream is not None and stream not in busy:
                    return
                self.now += 1
                self._streams[number].popleft()()

    def next_of(self, streams: list[int]) -> int:
        """The stream of which the next work is done."""
        return self._random.choice(streams)

    def work_until(self, event: LateEvent) -> None:
        """Does the work of the event's stream before it, and no other."""
        while not event.query():
            self.now += 1
            self._streams[event.stream].popleft()()

    def launch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace == "c10d":
            return self._communicate(func, args, kwargs)
        if func is torch.ops.fsdp.all_gather_copy_in.default:
            return all_gather_copy_in_cuda(*args, **kwargs)
        if kwargs.get("device") == _SHAPES:
            return func(*_on(_SHAPES, args), **kwargs)
        with self._lock, _disable_current_modes():
            if func._schema.name in _COPIES:
                if _waits(func, args, kwargs):
                    self._wait_for_stream()
                    return self._at_once(func, args, kwargs)
                self._count_unpinned(args)
            if _is_view(func):
                return self._at_once(func, args, kwargs)
            if written := _written(func, args, kwargs):
                ready = _on(_HOST, (args, kwargs))
                self.enqueue(lambda: func(*ready[0], **ready[1]))
                return written[0] if len(func._schema.returns) == 1 else None
            return self._later(func, args, kwargs)

    def _communicate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """As NCCL's: its place is in the stream, and nobody has to wait for it."""
        ready = _on(_HOST, (args, kwargs))

        def take_part() -> None:
            func(*ready[0], **ready[1])[-1].wait()

        self.enqueue(take_part)
        return args[0], Work.boxed(FakeWork())

    def _count_unpinned(self, args: Any) -> None:
        pinned = {one.untyped_storage().data_ptr() for one in self._pinned}
        source = args[0] if len(args) == 1 else args[1]
        hosts = [one for one in tree_iter(source) if not isinstance(one, LateTensor)]
        self.unpinned += sum(one.untyped_storage().data_ptr() not in pinned for one in hosts)

    def _at_once(self, func: Any, args: Any, kwargs: Any) -> Any:
        args_, kwargs_ = _on(_HOST, (args, kwargs))
        found = func(*args_, **kwargs_)
        if written := _written(func, args, kwargs):
            return written[0] if len(func._schema.returns) == 1 else None
        return found if _is_to_host(func, kwargs) else self._wrapped(found)

    def _later(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            shapes = func(*_on(_SHAPES, args), **_on(_SHAPES, kwargs))
        except (NotImplementedError, RuntimeError):
            shapes = None
        if not any(isinstance(one, Tensor) for one in tree_iter(shapes)):
            # A number for the host, or a size that depends on values.
            self._wait_for_stream()
            return self._at_once(func, args, kwargs)
        targets = tree_map(_poisoned, shapes)
        ready = _on(_HOST, (args, kwargs))

        def land() -> None:
            found = self._drawn(func, *ready)
            for target, value in zip(tree_iter(targets), tree_iter(found), strict=True):
                if isinstance(value, Tensor):
                    target.copy_(value)

        self.enqueue(land)
        return targets if _is_to_host(func, kwargs) else self._wrapped(targets)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Random numbers are those of the device's own generator."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        before = torch.get_rng_state()
        torch.set_rng_state(self._draws)
        try:
            return func(*args, **kwargs)
        finally:
            self._draws = torch.get_rng_state()
            torch.set_rng_state(before)

    def _wrapped(self, found: Any) -> Any:
        return tree_map(lambda one: LateTensor(one, self) if isinstance(one, Tensor) else one, found)


class _Factories(TorchDispatchMode):
    def __init__(self, late: LateDevice) -> None:
        super().__init__()
        self._late = late

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor in types:
            return NotImplemented  # Its parts come here then.
        if FakeTensor not in types and any(map(_is_late, tree_iter((args, kwargs)))):
            return self._late.launch(func, args, kwargs)
        return func(*args, **kwargs)


def _is_late(one: Any) -> bool:
    return isinstance(one, LateTensor) or (isinstance(one, torch.device) and one.type == LATE.type)


def _waits(func: Any, args: Any, kwargs: Any) -> bool:
    """Copies within a device never wait, and others only without ``non_blocking``."""
    if func._schema.name == "aten::_to_copy":
        is_within = isinstance(args[0], LateTensor) and not _is_to_host(func, kwargs)
    else:
        is_within = all(isinstance(one, LateTensor) for one in tree_iter(args) if isinstance(one, Tensor))
    return not is_within and not _argument(func, args, kwargs, "non_blocking")


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    place = [one.name for one in func._schema.arguments].index(name)
    return args[place] if place < len(args) else kwargs.get(name)


def _is_to_host(func: Any, kwargs: Any) -> bool:
    return func._schema.name == "aten::_to_copy" and kwargs.get("device") == _HOST


def _is_view(func: Any) -> bool:
    returned = [one.alias_info for one in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    names = [one.name for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]
    return [_argument(func, args, kwargs, name) for name in names]


def _on(device: torch.device, values: Any) -> Any:
    def moved(one: Any) -> Any:
        if isinstance(one, torch.device):
            return device if one.type == LATE.type or device == _SHAPES else one
        if not isinstance(one, Tensor):
            return one
        memory = one.memory if isinstance(one, LateTensor) else one.detach()
        if device == _HOST:
            return memory
        return torch.empty_strided(memory.size(), memory.stride(), dtype=memory.dtype, device=device)

    return tree_map(moved, values)


def _poisoned(shape: Any) -> Any:
    if not isinstance(shape, Tensor):
        return shape
    return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype).fill_(POISON)
