"""Copies live training state into a warm arena, in one pass.

An arena is a rank's checkpoint file in memory, byte for byte: a safetensors header, built once, then every
piece. The whole arena is touched when it is made, because writing memory for the first time costs ten times
as much as a copy.
"""

import json
from collections.abc import Mapping, Sequence
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
        is_pinned = any(piece.values.device.type == "cuda" for piece in pieces)
        self._memory = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        self._memory.zero_()
        self._memory[: len(layout.header)] = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
        self._slots = [
            _slot(self._memory, piece, shard.offset)
            for piece, shard in zip(pieces, layout.shards, strict=True)
        ]
        self.data = self._memory.numpy().data

    @torch.no_grad()
    def take(self, pieces: Sequence[Piece]) -> None:
        """Copies all pieces; what the training does afterwards changes nothing in the arena."""
        torch._foreach_copy_(self._slots, [piece.values for piece in pieces], non_blocking=True)
        if self._memory.is_pinned():
            torch.cuda.synchronize()


class Landing:
    """Host memory that a generation is loaded into: the live memory itself if it is on the host."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._host = [_on_host(piece.values) for piece in pieces]
        self.wants = [_want(piece) for piece in pieces]
        self.buffers = [values.view(torch.uint8).numpy().data for values in self._host]

    @torch.no_grad()
    def settle(self) -> None:
        """Copies the loaded bytes to the device. Call it only once everything is known to be whole."""
        for piece, values in zip(self._pieces, self._host, strict=True):
            if piece.values.device.type != "cpu":
                piece.values.copy_(values)


def _header(entries: dict[str, object]) -> bytes:
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // _PAGE) * _PAGE - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def _slot(memory: Tensor, piece: Piece, offset: int) -> Tensor:
    size = piece.values.numel() * piece.values.element_size()
    return memory[offset : offset + size].view(piece.values.dtype)


def _on_host(values: Tensor) -> Tensor:
    values = values.detach()
    return values if values.device.type == "cpu" else torch.empty_like(values, device="cpu", pin_memory=True)


def _want(piece: Piece) -> Want:
    return Want(
        tensor=piece.name,
        start=piece.start,
        length=piece.values.numel(),
        num_elements=prod(piece.shape),
        dtype=_DTYPES[piece.values.dtype],
    )
