"""Collectives for small values, sent as JSON in tensors of bytes, never as pickles.

torch's own collectives of objects unpickle what peers send, and unpickling can run code. Here a rank that a
stranger controls can send wrong values at worst. Ranks read at most ``most_bytes`` of each message, and each
value must be of the expected type.
"""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cluster.probe import door
from jobs.training.ranks.typed_json import decode, encode

T = TypeVar("T")

# Far larger than any real message; it limits how much memory a stranger's message makes a rank allocate.
MOST_BYTES = 2**24


class BadMessage(Exception):
    """A rank's message is too long or not of the expected type."""


def gather(own: T, kind: Any, *, most_bytes: int = MOST_BYTES) -> list[T]:
    """All ranks' values, in rank order, each of the type ``kind``.

    Collective: every rank makes the same calls in the same order. Raises ``BadMessage`` on all ranks or on
    none. Without a process group this process is the only rank.
    """
    if not dist.is_initialized():
        return [_read(encode(own), 0, kind)]
    device, data = _device(), encode(own)
    size = torch.tensor([len(data)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    lengths = [_checked(length, rank, most_bytes) for rank, length in enumerate(torch.cat(sizes).tolist())]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(data)] = _tensor(data, device)
    rows = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(rows, padded)
    pairs = zip(rows, lengths, strict=True)
    return [_read(_bytes(row[:length]), rank, kind) for rank, (row, length) in enumerate(pairs)]


def from_rank_0(own: T, kind: Any, *, most_bytes: int = MOST_BYTES) -> T:
    """Rank 0's value, on all ranks; the other ranks' ``own`` is ignored. Collective."""
    is_sender = not dist.is_initialized() or dist.get_rank() == 0
    data = bytes_from_rank_0(encode(own) if is_sender else b"", most_bytes=most_bytes)
    value: T = _read(data, 0, kind)
    return value


def bytes_from_rank_0(own: bytes, *, most_bytes: int = MOST_BYTES) -> bytes:
    """As ``from_rank_0``, for bytes that the caller decodes."""
    if not dist.is_initialized():
        return own
    device = _device()
    size = torch.tensor([len(own)], device=device)
    dist.broadcast(size, src=0)
    length = _checked(int(size), 0, most_bytes)
    data = (
        _tensor(own, device)
        if dist.get_rank() == 0
        else torch.empty(length, dtype=torch.uint8, device=device)
    )
    dist.broadcast(data, src=0)
    return _bytes(data)


def _checked(length: int, rank: int, most_bytes: int) -> int:
    if not 0 <= length <= most_bytes:
        raise BadMessage(f"rank {rank} sends {length} bytes, expected at most {most_bytes}")
    return length


def _read(data: bytes, rank: int, kind: Any) -> Any:
    try:
        return decode(kind, data)
    except ValueError as error:
        raise BadMessage(f"rank {rank}'s message can't be read: {error}") from error


def _device() -> torch.device:
    """The device on which the default group's collectives expect their tensors."""
    return door.collective_device(dist.get_backend())


def _tensor(data: bytes, device: torch.device) -> Tensor:
    # ``frombuffer`` refuses an empty buffer, so one byte is added and cut off again.
    return torch.frombuffer(bytearray(data + b"\0"), dtype=torch.uint8)[:-1].to(device)


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()
