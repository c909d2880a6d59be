"""The facts that are measured on a node: plain data, also recorded in tests. Pure.

A value that was not measured is None or missing, and ``problems`` say why; a rate is never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NodePlatform = Literal["cpu", "cuda", "rocm"]

# Versions of these packages decide whether processes of different nodes understand each other.
PACKAGES = ("ray", "torch", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a matrix product: (rows, inner) times (inner, columns)."""

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
    """What to measure. ``folder`` is on the disk to measure; None means the node's own temporary files.

    ``is_one_core`` limits the matrix products to one thread.
    """

    shapes: tuple[Shape, ...]
    folder: str | None
    is_one_core: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRate:
    """The fastest of several batches: the device's ability, not its average."""

    device: int
    dtype: str
    shape: Shape
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """The rate of copies from pinned host memory."""

    device: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDigest:
    """Of what a device computed of known numbers by one kernel. ``model`` is its device's; empty: that of the
    node.
    """

    device: int
    kernel: str
    digest: str
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """Facts of a disk. ``write_bytes_per_s`` includes the final fsync; ``fsync_s`` is the median of small
    appends.
    """

    folder: str
    free_bytes: int
    write_bytes_per_s: float
    fsync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts of a node.

    - ``visible`` holds the variables that hide devices.
    - ``telemetry`` names the interface that reports power, or is None.
    - ``num_devices`` counts the cores that the process may use on the platform ``cpu``.
    - ``versions`` has None for a package that is not installed.
    - ``model`` decides, with torch, what a healthy device computes to the bit; it is a CPU's processor, and
      the first one's of several devices.
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
    model: str = ""
    kernels: tuple[KernelDigest, ...] = ()
    disk: DiskFacts | None = None
    telemetry: str | None = None
    problems: tuple[str, ...] = ()

    def kind_of(self, one: KernelDigest) -> tuple[str, str, str]:
        """Its device's model, platform and torch: healthy devices of one kind compute the same."""
        return one.model or self.model, self.platform, self.versions.get("torch") or ""

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """Returns the rate of the slowest device, at the shape that suits that device best."""
        best: dict[int, float] = {}
        for gemm in (gemm for gemm in self.gemms if gemm.dtype == dtype):
            best[gemm.device] = max(best.get(gemm.device, 0.0), gemm.flops_per_s)
        return min(best.values(), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """All-reduce over ``num_ranks``: the bus bandwidth of large messages and the time of the smallest ones.

    Bus bandwidth is size x 2 (n-1) / n / time, which does not depend on the number of ranks.
    """

    num_ranks: int
    backend: str
    size_bytes: int
    bus_bytes_per_s: float
    small_s: float
