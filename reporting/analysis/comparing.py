"""Comparing says which of two groups, or two sets of results, is faster at the same work, and what else
differed.

Runs are pooled over all cells of one group and subject, also across sweeps, because the same cell may be in
two.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from operator import attrgetter
from statistics import median
from typing import Any

from reporting.analysis.cells import group_of, measured, newest_attempts, status_of, subject_of
from reporting.analysis.findings import CellSummary, Comparison, Difference, Subject
from reporting.analysis.sides.causes import likeliest_first
from reporting.analysis.statistics import THRESHOLD, Contrast, Sample, contrasts, over_sessions
from reporting.results.rows import Row

# Settings and circumstances of a run, never its results. Two sides that agree in all of these are a fair
# pair.
_CONDITIONS = (
    "vendor", "device_name", "device_memory_bytes", "driver", "platform", "torch", "python", "collectives",
    "commit", "source_digest", "seed", "sync", "isolation", "spread", "steps", "warmup_rule", "tier",
    "parameters", "timing_unit", "simulated", "imported", "power_cap_watts", "attention_kernel",
)  # fmt: skip
# Columns that hold maps: each of their keys is a condition.
_MAPS = {
    "packages": "package ",
    "variables": "variable ",
    "optimizer": "optimizer ",
    "fingerprint": "",
}
_UNKNOWN = "unknown"

Conditions = tuple[Any, ...]
_conditions = attrgetter(*_CONDITIONS, *_MAPS)
_FINGERPRINT = -1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unmatched:
    """A group and subject that only one of the two sets has."""

    group: str
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """The comparison of two sets, ordered by group, then subject. A side whose runs all failed has 0 runs."""

    comparisons: tuple[Comparison, ...]
    only_in_baseline: tuple[Unmatched, ...]
    only_in_other: tuple[Unmatched, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """All runs of one group that one comparison is about."""

    group: str
    rows: tuple[Row, ...]


Pair = tuple[Subject, Side, Side]
Table = dict[str, dict[Subject, Side]]


def compare_groups(cells: Sequence[CellSummary]) -> tuple[Comparison, ...]:
    """Compares every pair of groups, ordered by pair, then subject. p is adjusted over all comparisons.

    The baseline is the alphabetically first group. Subjects that neither group measured are left out.
    """
    table = table_of(row for cell in cells for row in cell.rows)
    pairs = [
        (subject, table[one][subject], table[two][subject])
        for one, two in combinations(sorted(table), 2)
        for subject in sorted(table[one].keys() & table[two].keys())
        if measured((*table[one][subject].rows, *table[two][subject].rows))
    ]
    return _compare(pairs, THRESHOLD)


def compare_sets(
    baseline: Iterable[Row], other: Iterable[Row], threshold: float = THRESHOLD
) -> SetComparison:
    """Compares cells of equal subject and group.

    If no group is on both sides and one side has a single group, that group is compared with every group of
    the other side.
    """
    ours, theirs = table_of(newest_attempts(baseline)), table_of(newest_attempts(other))
    pairs = [
        (subject, ours[one][subject], theirs[two][subject])
        for one, two in _partners(ours, theirs)
        for subject in sorted(ours[one].keys() & theirs[two].keys())
    ]
    return SetComparison(
        comparisons=_compare(pairs, threshold),
        only_in_baseline=_unmatched(ours, {(mine.group, subject) for subject, mine, _ in pairs}),
        only_in_other=_unmatched(theirs, {(yours.group, subject) for subject, _, yours in pairs}),
    )


def _unmatched(table: Table, matched: set[tuple[str, Subject]]) -> tuple[Unmatched, ...]:
    there = {(group, subject) for group, cells in table.items() for subject in cells}
    return tuple(Unmatched(group=group, subject=subject) for group, subject in sorted(there - matched))


def _partners(ours: Table, theirs: Table) -> list[tuple[str, str]]:
    if min(len(ours), len(theirs)) == 1 and not ours.keys() & theirs.keys():
        return [(one, two) for one in sorted(ours) for two in sorted(theirs)]
    return [(group, group) for group in sorted(ours.keys() & theirs.keys())]


def table_of(rows: Iterable[Row]) -> Table:
    """Returns the sides by group and subject."""
    found: dict[str, dict[Subject, list[Row]]] = {}
    for row in rows:
        found.setdefault(group_of(row), {}).setdefault(subject_of(row), []).append(row)
    return {
        group: {subject: Side(group=group, rows=tuple(members)) for subject, members in cells.items()}
        for group, cells in found.items()
    }


def _compare(pairs: Sequence[Pair], threshold: float) -> tuple[Comparison, ...]:
    sides = [(_sample(baseline), _sample(other)) for _, baseline, other in pairs]
    return compare_sides(pairs, sides, threshold)


def compare_sides(
    pairs: Sequence[Pair], samples: Sequence[tuple[Sample, Sample]], threshold: float = THRESHOLD
) -> tuple[Comparison, ...]:
    """Compares the samples of both sides of each pair. p is adjusted over all pairs."""
    found = contrasts(samples, threshold=threshold)
    return tuple(
        _comparison(pair, *arms, over_sessions(contrast, *map(_sessions, pair[1:]), threshold=threshold))
        for pair, arms, contrast in zip(pairs, samples, found, strict=True)
    )


def _comparison(pair: Pair, ours: Sample, theirs: Sample, contrast: Contrast) -> Comparison:
    subject, baseline, other = pair
    return Comparison(
        subject=subject,
        baseline=baseline.group,
        other=other.group,
        num_baseline=len(ours),
        num_other=len(theirs),
        ratio=contrast.ratio,
        low=contrast.low,
        high=contrast.high,
        p=contrast.p,
        p_adjusted=contrast.p_adjusted,
        p_slower_adjusted=contrast.p_slower_adjusted,
        cliffs_delta=contrast.cliffs_delta,
        verdict=_verdict(baseline, other, contrast),
        differences=_differences(_seen(baseline), _seen(other)) if contrast.ratio else (),
        baseline_tokens_per_sec=median(ours) if ours else None,
        other_tokens_per_sec=median(theirs) if theirs else None,
        baseline_sessions=len(_sessions(baseline)),
        other_sessions=len(_sessions(other)),
        baseline_status=status_of(baseline.rows),
        other_status=status_of(other.rows),
    )


def _sample(side: Side) -> Sample:
    return tuple(row.tokens_per_sec or 0.0 for row in measured(side.rows))


def _sessions(side: Side) -> list[Sample]:
    """The throughputs of each session. Rows of older versions are all of one."""
    found: dict[tuple[str | None, int], list[float]] = {}
    for row in measured(side.rows):
        found.setdefault((row.sweep, row.session or 1), []).append(row.tokens_per_sec or 0.0)
    return list(found.values())


def _verdict(baseline: Side, other: Side, contrast: Contrast) -> str:
    """Returns the contrast's verdict, or else why a side has no numbers. The same runs are equivalent."""
    statuses = [status for side in (other, baseline) if (status := status_of(side.rows)) != "ok"]
    if statuses:
        return statuses[0]
    return "equivalent" if baseline.rows == other.rows else contrast.verdict


def _seen(side: Side) -> frozenset[Conditions]:
    """Returns the conditions of the side's measured runs. Failed runs ended before they could
    record theirs.
    """
    return frozenset(map(_conditions, measured(side.rows)))


@lru_cache(maxsize=1024)
def _differences(baseline: frozenset[Conditions], other: frozenset[Conditions]) -> tuple[Difference, ...]:
    """Returns the differences, the likeliest cause first. Many cells share their conditions, hence the cache.

    Results of older versions have no fingerprint: then that is one difference, not one for each of its facts.
    """
    with_facts = all(any(conditions[_FINGERPRINT] for conditions in side) for side in (baseline, other))
    ours, theirs = _values(baseline, with_facts), _values(other, with_facts)
    found = (
        Difference(what=name.replace("_", " ") if name in _CONDITIONS else name, baseline=one, other=two)
        for name in ours.keys() | theirs.keys()
        if (one := ours.get(name, _UNKNOWN)) != (two := theirs.get(name, _UNKNOWN))
    )
    return likeliest_first(found)


def _values(seen: frozenset[Conditions], with_facts: bool) -> dict[str, str]:
    """Returns, by name, all values joined into one text."""
    found: dict[str, set[str]] = {}
    for conditions in seen:
        for name, value in _named(conditions, with_facts):
            found.setdefault(name, set()).add(_UNKNOWN if value is None else str(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def _named(conditions: Conditions, with_facts: bool) -> Iterator[tuple[str, Any]]:
    yield from zip(_CONDITIONS, conditions, strict=False)
    if not with_facts:
        yield "fingerprint", "recorded" if conditions[_FINGERPRINT] else None
    for kind, pairs in zip(_MAPS.values(), conditions[len(_CONDITIONS) :], strict=True):
        if with_facts or pairs is not conditions[_FINGERPRINT]:
            yield from ((f"{kind}{key}", value) for key, value in pairs)
