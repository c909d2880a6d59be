"""Downsampling keeps a few points of a long series, in bounded memory and one pass. Pure."""

from collections.abc import Iterable
from typing import Generic, TypeVar

Point = TypeVar("Point")


class Downsampled(Generic[Point]):
    """Keeps every n-th point added, with n as small as ``most`` points allow. The newest point is always
    kept.
    """

    def __init__(self, most: int, points: Iterable[Point] = ()) -> None:
        self._most = most
        self._stride = 1
        self._num_seen = 0
        self._kept: list[Point] = []
        self._newest: list[Point] = []
        for point in points:
            self.add(point)

    def add(self, point: Point) -> None:
        self._newest = [point]
        if self._num_seen % self._stride == 0:
            self._kept.append(point)
        self._num_seen += 1
        if len(self._kept) >= self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def points(self) -> tuple[Point, ...]:
        is_newest_kept = (self._num_seen - 1) % self._stride == 0
        return (*self._kept, *(() if is_newest_kept else self._newest))
