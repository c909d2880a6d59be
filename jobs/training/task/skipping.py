"""Samples that a run leaves out after its loss went wrong on them. Pure.

``Task.skips`` holds ranges of positions in the run's stream, each ``(first, end)`` without ``end``. Who steps
a run back adds one, ``Failure.samples`` of the attempt that failed with ``invalid_loss``, keeps all of them
for as long as the run lives and gives all of them to every later attempt, in any order: they may overlap and
may lie before where it goes on. In a later epoch the same samples stand at other positions, and are read.

Steps keep their numbers and their size; their samples come from further on. So a run that skips reads as
many samples as one that doesn't, and where an epoch ends is said by positions alone.
"""

from collections.abc import Iterable

Range = tuple[int, int]
Skips = tuple[Range, ...]


def after(position: int, skips: Iterable[Range], *, num_samples: int) -> int:
    """Where a step of ``num_samples`` begins that reads none of the ranges: at ``position``, or further on.

    Whoever goes on from there is never led back, so no sample is read twice. Between two ranges with less
    than a step's samples between them nothing is read.
    """
    for first, end in sorted(skips):
        if first < end and first < position + num_samples and position < end:
            position = end
    return position


def joined(skips: Iterable[Range]) -> Skips:
    """The same samples in as few ranges as possible, ascending: to keep and to show."""
    found: list[Range] = []
    for first, end in sorted(one for one in skips if one[0] < one[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)
