"""Copies live training state into a warm arena, in one pass, or in the background while nothing changes it.

An arena is a rank's checkpoint file in memory, byte for byte: a safetensors header, built once, then every
piece. The whole arena is touched when it is made, because writing memory for the first time costs ten times
as much as a copy.
"""

import ctypes
import json
import mmap
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from checkpointing.format.manifest import Shard, TensorInfo
from checkpointing.format.reshard import Want

_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.float64: "F64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.bool: "BOOL",
}
# The types of tensors that can be saved.
DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in _DTYPES.items()}
# The data begins at a multiple of a page, so that elements of every size are aligned.
_PAGE = 4096
# Parts of memory for elements of any size begin at a multiple of this.
_ALIGNED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The elements from ``start`` on of the flattened logical tensor ``name``, which has shape ``shape``.

    ``values`` is a contiguous one-dimensional view of live memory, or empty. Reading ``values`` after a
    step gives the state after that step, and writing to it changes the training.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The position of each piece in a rank's file. ``header`` is the first bytes of the file."""

    header: bytes
    tensors: tuple[TensorInfo, ...]
    shards: tuple[Shard, ...]
    num_bytes: int


def layout(pieces: Sequence[Piece]) -> Layout:
    """Places larger elements first, so that all are aligned without gaps, which safetensors forbids."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "longhaul": "see manifest.json"}}
    offsets: dict[str, int] = {}
    end = 0
    for piece in sorted(pieces, key=lambda piece: -piece.values.element_size()):
        size = piece.values.numel() * piece.values.element_size()
        if size:
            shape = [piece.values.numel()]
            entries[piece.name] = {
                "dtype": _DTYPES[piece.values.dtype],
                "shape": shape,
                "data_offsets": [end, end + size],
            }
        offsets[piece.name] = end
        end += size
    header = _header(entries)
    return Layout(
        header=header,
        tensors=tuple(
            TensorInfo(name=piece.name, dtype=_DTYPES[piece.values.dtype], shape=piece.shape)
            for piece in pieces
        ),
        shards=tuple(
            Shard(
                tensor=piece.name,
                start=piece.start,
                length=piece.values.numel(),
                offset=len(header) + offsets[piece.name],
            )
            for piece in pieces
        ),
        num_bytes=len(header) + end,
    )


class Arena:
    """Memory for one rank's file, reused for pieces of the same layout."""

    def __init__(self, pieces: Sequence[Piece], layout: Layout) -> None:
        self._copying: Copying | None = None
        self._device = _device_of(pieces)
        self._memory = host_memory(layout.num_bytes, self._device)
        self._memory[: len(layout.header)] = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
        self._slots = [
            _slot(self._memory, piece, shard.offset)
            for piece, shard in zip(pieces, layout.shards, strict=True)
        ]
        self._data = self._memory.numpy().data

    @property
    def data(self) -> memoryview:
        """The file, once all of it is copied. Raises if it could not be."""
        if self._copying:
            self._copying.finish()
        return self._data

    @torch.no_grad()
    def take(self, pieces: Sequence[Piece]) -> None:
        """Copies all pieces; what the training does afterwards changes nothing in the arena."""
        self._copying = None
        torch._foreach_copy_(self._slots, [piece.values for piece in pieces], non_blocking=True)
        _wait_for(self._device)

    def begin(self, pieces: Sequence[Piece]) -> "Copying":
        """Begins to copy all pieces, and returns at once: none of them may change before ``settle``."""
        self._copying = Copying(self._slots, pieces, self._device)
        return self._copying


class Copying:
    """A copy on its way: a thread copies what is on the host, a stream of its own what is on the device.

    ``waited_s``: how long ``settle`` has waited.
    """

    def __init__(self, slots: Sequence[Tensor], pieces: Sequence[Piece], device: torch.device) -> None:
        self.waited_s = 0.0
        self._device = device
        self._problem: BaseException | None = None
        pairs = [(slot, piece.values.detach()) for slot, piece in zip(slots, pieces, strict=True)]
        # Kept until they are copied: what a device frees may be another's memory at once.
        self._there = there = [(slot, values) for slot, values in pairs if not _is_on_host(values)]
        here = [(slot, values) for slot, values in pairs if _is_on_host(values)]
        self._landed = _launched(there, device) if there else None
        self._is_copied = threading.Event()
        try:
            threading.Thread(target=self._copy, args=(here,), name="copy", daemon=True).start()
        except RuntimeError:  # No thread is to be had, which must not end the training.
            self._copy(here)

    def settle(self) -> None:
        """Returns once the pieces may change. Those on a device may, for what is launched from now on."""
        started = time.perf_counter()
        self._is_copied.wait()
        if self._landed:
            torch.accelerator.current_stream(self._device).wait_event(self._landed)
        self.waited_s += time.perf_counter() - started

    def finish(self) -> None:
        self._is_copied.wait()
        if self._landed:
            self._landed.synchronize()
        self._there.clear()
        if self._problem:
            raise RuntimeError(f"the copy of this rank's state failed: {self._problem}") from self._problem

    def _copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        try:
            for target, source in pairs:
                # torch would take threads away from the step that is computed meanwhile.
                ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        except BaseException as error:
            self._problem = error
        self._is_copied.set()


@torch.no_grad()
def _launched(pairs: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> torch.Event:
    """Copies behind what the training has launched so far, beside what it launches next."""
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        torch._foreach_copy_([slot for slot, _ in pairs], [values for _, values in pairs], non_blocking=True)
    return stream.record_event()


class Landing:
    """Host memory that a generation is loaded into: the live memory itself if it is on the host.

    What it takes besides goes back to the system with the landing.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._host = _on_host(pieces)
        self.wants = [_want(piece) for piece in pieces]
        self.buffers = [values.view(torch.uint8).numpy().data for values in self._host]

    @torch.no_grad()
    def settle(self) -> None:
        """Copies the loaded bytes to the device. Call it only once everything is known to be whole."""
        for piece, values in zip(self._pieces, self._host, strict=True):
            if _is_on_device(piece):
                piece.values.copy_(values, non_blocking=True)
        _wait_for(_device_of(self._pieces))


def host_memory(num_bytes: int, device: torch.device) -> Tensor:
    """Zeroed bytes, all of them touched; pinned if ``device`` is CUDA's or HIP's, which must be there then.

    It goes back to the system with the last view of it. torch's own pinned memory is rounded up to a power of
    two and stays with the process: on an H200 5 GiB took 8. A registered mapping copies as fast.

    Raises ``RuntimeError`` with the driver's words if so much can't be pinned.
    """
    if device.type != "cuda" or num_bytes == 0:
        return torch.empty(num_bytes, dtype=torch.uint8).zero_()  # Plain zeros would not be touched.
    mapping = _Registered(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A child would share these pages until one side writes, and the device would go on with the wrong ones.
    mapping.madvise(mmap.MADV_DONTFORK)
    # Kernels without huge pages refuse this, and are only slower.
    with suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8).zero_()
    mapping.pin_memory(memory)
    return memory


class _Registered(mmap.mmap):
    """Lives as long as any tensor over it; then the driver forgets it, before the system takes it back."""

    _address: int | None = None

    def pin_memory(self, memory: Tensor) -> None:
        runtime, address = torch.cuda.cudart(), memory.data_ptr()
        error = runtime.cudaHostRegister(address, memory.nbytes, 0)
        if error != runtime.cudaError.success:
            words = runtime.cudaGetErrorString(error)
            raise RuntimeError(
                f"CUDA error: {words}: {memory.nbytes:,} bytes of this host's memory can't be pinned; "
                "`ulimit -l` and the limit of the container say how much may be"
            )
        self._address = address

    def __del__(self) -> None:
        # At the end of the interpreter the driver may be gone before.
        if self._address is not None:
            with suppress(Exception):
                torch.cuda.cudart().cudaHostUnregister(self._address)


def _header(entries: dict[str, object]) -> bytes:
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // _PAGE) * _PAGE - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def _slot(memory: Tensor, piece: Piece, offset: int) -> Tensor:
    size = piece.values.numel() * piece.values.element_size()
    return memory[offset : offset + size].view(piece.values.dtype)


def _is_on_device(piece: Piece) -> bool:
    return not _is_on_host(piece.values)


def _is_on_host(values: Tensor) -> bool:
    return values.device.type == "cpu"


def _device_of(pieces: Sequence[Piece]) -> torch.device:
    """The device of those pieces that are on one; a rank has only one."""
    return next((piece.values.device for piece in pieces if _is_on_device(piece)), torch.device("cpu"))


def _wait_for(device: torch.device) -> None:
    """Waits for copies, whether or not their memory is pinned: not each kind of device waits by itself."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _on_host(pieces: Sequence[Piece]) -> list[Tensor]:
    """Live memory that is on the host, and of one piece of host memory a part for each that is not."""
    sizes = [_aligned(piece.values.nbytes) if _is_on_device(piece) else 0 for piece in pieces]
    memory, end = host_memory(sum(sizes), _device_of(pieces)), 0
    found = []
    for piece, size in zip(pieces, sizes, strict=True):
        found.append(_slot(memory, piece, end) if _is_on_device(piece) else piece.values.detach())
        end += size
    return found


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def _want(piece: Piece) -> Want:
    return Want(
        tensor=piece.name,
        start=piece.start,
        length=piece.values.numel(),
        num_elements=prod(piece.shape),
        dtype=_DTYPES[piece.values.dtype],
    )
