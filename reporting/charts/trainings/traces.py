"""Traces are long series, shortened until they can be drawn. Pure."""

from collections.abc import Iterable, Sequence

from reporting.charts.wording import is_number

MOST_POINTS = 500

Trace = Sequence[tuple[float, float]]


def downsampled(points: Iterable[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Keeps the lowest and the highest point of each stretch, so that no spike is lost. Points that are not
    finite are dropped.
    """
    found = [point for point in points if is_number(point[0]) and is_number(point[1])]
    if len(found) <= most:
        return found
    size = -(-len(found) // (most // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(found), size):
        stretch = found[start : start + size]
        ends = {stretch.index(pick(stretch, key=lambda point: point[1])) for pick in (min, max)}
        kept += [stretch[index] for index in sorted(ends)]
    return kept


def xy(points: Trace) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def runs_left_out(shown: int, of: int) -> str:
    """Returns a sentence for the caption, or nothing if all runs are drawn."""
    return f" {shown} of {of} runs are drawn." if shown < of else ""
