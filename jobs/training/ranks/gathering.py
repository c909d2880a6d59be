"""What all ranks tell each other beside the tensors of a step: JSON in tensors of bytes, never pickles.

torch's own collectives of objects unpickle what peers send, and to unpickle is to run it. Here a rank that is
not what it seems can send wrong values at worst: nobody reads more than ``most_bytes`` of it, and each value
must be of the type that is expected.
"""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.training.ranks.typed_json import decode, encode

T = TypeVar("T")

# Far more than any of ours; it bounds what a rank that is not what it seems makes the others allocate.
MOST_BYTES = 2**24


class BadWord(Exception):
    """What a rank has sent is too long or not of the type that was expected."""


def gather(own: T, kind: Any, *, most_bytes: int = MOST_BYTES) -> list[T]:
    """All ranks' values, in their order, each of the type ``kind``. Every rank calls it, in the same order of
    calls; it raises ``BadWord`` on all ranks or on none.
    """
    return [
        _read(data, rank, kind) for rank, data in enumerate(gather_bytes(encode(own), most_bytes=most_bytes))
    ]


def from_rank_0(own: T, kind: Any, *, most_bytes: int = MOST_BYTES) -> T:
    """What rank 0 calls it with, on all ranks; what the others call it with does not count."""
    data = bytes_from_rank_0(encode(own) if dist.get_rank() == 0 else b"", most_bytes=most_bytes)
    value: T = _read(data, 0, kind)
    return value


def gather_bytes(own: bytes, *, most_bytes: int = MOST_BYTES) -> list[bytes]:
    """As ``gather``, of bytes that the caller reads."""
    device = _device()
    size = torch.tensor([len(own)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    lengths = [_length(found, rank, most_bytes) for rank, found in enumerate(torch.cat(sizes).tolist())]
    padded = torch.zeros(max(*lengths, 1), dtype=torch.uint8, device=device)
    padded[: len(own)] = _tensor(own, device)
    rows = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(rows, padded)
    return [_bytes(row[:length]) for row, length in zip(rows, lengths, strict=True)]


def bytes_from_rank_0(own: bytes, *, most_bytes: int = MOST_BYTES) -> bytes:
    """As ``from_rank_0``, of bytes that the caller reads."""
    device = _device()
    size = torch.tensor([len(own)], device=device)
    dist.broadcast(size, src=0)
    length = _length(int(size), 0, most_bytes)
    data = (
        _tensor(own, device)
        if dist.get_rank() == 0
        else torch.empty(length, dtype=torch.uint8, device=device)
    )
    dist.broadcast(data, src=0)
    return _bytes(data)


def _length(found: int, rank: int, most_bytes: int) -> int:
    if not 0 <= found <= most_bytes:
        raise BadWord(f"rank {rank} has {found} bytes to tell, expected at most {most_bytes}")
    return found


def _read(data: bytes, rank: int, kind: Any) -> Any:
    try:
        return decode(kind, data)
    except ValueError as error:
        raise BadWord(f"what rank {rank} tells can't be read: {error}") from error


def _device() -> torch.device:
    """Where the default group's collectives take their tensors from."""
    return torch.device("cpu" if dist.get_backend() == "gloo" else "cuda")


def _tensor(data: bytes, device: torch.device) -> Tensor:
    # frombuffer refuses what is empty.
    return torch.frombuffer(bytearray(data + b"\0"), dtype=torch.uint8)[:-1].to(device)


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()
