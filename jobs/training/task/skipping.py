"""Samples that a run leaves out after its loss went wrong on them. Pure.

``Task.skips`` holds ranges of positions in the run's stream, each ``(first, end)`` without ``end``. A
rollback after ``invalid_loss`` adds the failed attempt's ``BadLoss.samples``. All ranges are kept as long as
the run lives and are given to every later attempt. Ranges may come in any order, overlap, or lie before the
position where an attempt resumes. A later epoch has the same samples at other positions and reads them.

Under other weights a mixture has other samples at these positions. So ``Task.skipped_in`` are the stretches
in which the newest range was found, and a run goes on in no others until it is past its ranges.

Steps keep their numbers and their size; their samples come from later positions. So a run that skips reads as
many samples as a run that doesn't, and positions alone say where an epoch ends.
"""

from collections.abc import Iterable

Range = tuple[int, int]
Skips = tuple[Range, ...]
# Of each stretch of a mixture, its first position and its weights, see ``jobs.training.data.mixture``.
RecordedStretches = tuple[tuple[int, str], ...]


def start_past(position: int, skips: Iterable[Range], *, num_samples: int) -> int:
    """The first place, at ``position`` or later, where a step of ``num_samples`` reads none of the ranges.

    The result is never before ``position``, so no sample is read twice. A gap between two ranges that is
    smaller than a step is left out too.
    """
    for first, end in sorted(skips):
        if first < end and first < position + num_samples and position < end:
            position = end
    return position


def merged(skips: Iterable[Range]) -> Skips:
    """The same samples in as few ranges as possible, ascending, for storing and showing."""
    ranges: list[Range] = []
    for first, end in sorted(skip for skip in skips if skip[0] < skip[1]):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((first, end))
    return tuple(ranges)
