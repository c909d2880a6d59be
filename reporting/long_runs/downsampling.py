"""Downsampling keeps a few points of a long series, in bounded memory and one pass. Pure."""

from typing import Generic, TypeVar

Point = TypeVar("Point")


class Downsampled(Generic[Point]):
    """Keeps every n-th point added, with n as small as ``most`` points allow. The newest point is always
    kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._num_seen = 0
        self._kept: list[Point] = []
        self._newest: list[Point] = []

    def add(self, point: Point) -> None:
        self._newest = [point]
        if self._num_seen % self._stride == 0:
            self._kept.append(point)
            self._newest = []
        self._num_seen += 1
        if len(self._kept) >= self._most:
            self._newest = self._newest or self._kept[-1:]
            self._kept = self._kept[::2]
            self._stride *= 2
            self._newest = [] if self._newest == self._kept[-1:] else self._newest

    def points(self) -> tuple[Point, ...]:
        return (*self._kept, *self._newest)
