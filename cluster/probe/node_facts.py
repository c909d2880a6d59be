"""What a node tells of itself when it is asked: plain data, also recorded in tests. Pure.

What was not measured is None or missing, and ``problems`` say why; a rate is never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NodePlatform = Literal["cpu", "cuda", "rocm"]

# What decides whether processes of different nodes understand each other.
PACKAGES = ("ray", "torch", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a matrix product: (rows, inner) times (inner, columns)."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``folder`` is on the disk to be measured, None for the node's own temporary files; ``is_one_core``
    holds the products to one thread.
    """

    shapes: tuple[Shape, ...]
    folder: str | None
    is_one_core: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRate:
    """The fastest of several batches: what the device can do, not what it did on average."""

    device: int
    dtype: str
    shape: Shape
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """From pinned host memory."""

    device: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """``write_bytes_per_s`` includes the final fsync; ``fsync_s`` is the median of small appends."""

    folder: str
    free_bytes: int
    write_bytes_per_s: float
    fsync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """``visible`` are the variables that hide devices; ``telemetry`` is what can be asked for power, or None.

    On the platform ``cpu`` a device is a core that the process may use. ``versions`` has None for a package
    that is not installed.
    """

    host: str
    platform: NodePlatform
    device: str | None
    num_devices: int
    driver: str | None
    visible: Mapping[str, str]
    versions: Mapping[str, str | None]
    memory_bytes: int
    shm_bytes: int | None
    gemms: tuple[GemmRate, ...] = ()
    copies: tuple[CopyRate, ...] = ()
    disk: DiskFacts | None = None
    telemetry: str | None = None
    problems: tuple[str, ...] = ()

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """Of the slowest device, at the shape that suits it best."""
        best: dict[int, float] = {}
        for gemm in (gemm for gemm in self.gemms if gemm.dtype == dtype):
            best[gemm.device] = max(best.get(gemm.device, 0.0), gemm.flops_per_s)
        return min(best.values(), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """All-reduce over ``num_ranks``: bus bandwidth of large messages, time of the smallest ones.

    Bus bandwidth is size x 2 (n-1) / n / time, which does not depend on the number of ranks.
    """

    num_ranks: int
    backend: str
    size_bytes: int
    bus_bytes_per_s: float
    small_s: float
