"""These types hold what one source contains, before it is judged. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]

_MOST_CHARS = 80

# A run without any of these has nothing that a table could compare.
MEASURED = (
    "tokens_per_sec", "tokens_per_sec_per_device", "mean_step_time_sec", "peak_vram_gb", "mean_loss",
    "raw_step_times",
)  # fmt: skip


class ImportProblem(Exception):
    """A file from which nothing can be imported. The message says what was found and what was expected, but
    not which file.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContents:
    """The contents of a source: one mapping from columns to values per run. ``not_mapped`` are the headers or
    tags for which no column is known.
    """

    kind: str
    runs: tuple[Values, ...]
    not_mapped: tuple[str, ...]
    notes: tuple[str, ...] = ()


def is_measured(values: Values) -> bool:
    return any(values.get(name) is not None for name in MEASURED)


def left_out(places: Sequence[int], noun: str, why: str) -> Iterator[str]:
    """Yields a note that names what is not taken in: ``left out, without a measurement: rows 3, 5``."""
    if places:
        numbers = listed(map(str, places), most=20)
        yield f"left out, {why}: {noun if len(places) == 1 else noun + 's'} {numbers}"


def listed(names: Iterable[str], most: int = 8) -> str:
    """Returns ``a, b, c and 4 more``. Long names, which somebody else chose, are cut."""
    known = list(dict.fromkeys(map(_short, names)))
    rest = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + rest


def _short(name: str) -> str:
    return name if len(name) <= _MOST_CHARS else f"{name[: _MOST_CHARS - 3]}..."
