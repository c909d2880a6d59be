"""Compares groups each at its best setting: what a user would get, beside what the same settings do.

A question is a model on so many devices, with the same sequence length, precision and sequences in a step.
Strategy, micro-batch and all other settings are each group's own choice among what was measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import median

from reporting.analysis.cells import measured, status_of
from reporting.analysis.comparing import Side, compare_sides, table_of
from reporting.analysis.findings import LARGEST, CellSummary, Choice, Comparison, MatchUp, Subject
from reporting.analysis.statistics import verdict
from reporting.results.rows import Row

# Model, devices, sequence length, precision, sequences in a step.
_Question = tuple[str, int, int, str, int]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What one group measured for one question: its settings, in order."""

    group: str
    settings: Mapping[Subject, Side]

    @cached_property
    def runs(self) -> dict[Subject, list[float]]:
        """The throughputs of each setting that has numbers, in the order of the repeats."""
        rows = {
            subject: sorted(measured(side.rows), key=_order_of) for subject, side in self.settings.items()
        }
        return {subject: [row.tokens_per_sec or 0.0 for row in own] for subject, own in rows.items() if own}

    @cached_property
    def best(self) -> Subject:
        return max(self.runs, key=lambda subject: median(self.runs[subject]))

    @property
    def side(self) -> Side:
        return self.settings[self.best]

    @property
    def micro_batches(self) -> list[int]:
        return sorted({row.per_device_batch or 0 for row in measured(self.side.rows)})

    def held_out(self) -> Iterator[float]:
        """Yields runs, each of the setting that all other runs would choose.

        Among many settings that are equally fast, the one that looks best owes that to luck. A run that has
        no say in the choice is as fast as the setting really is.
        """
        for place in range(max(map(len, self.runs.values()))):
            others = {
                subject: [*found[:place], *found[place + 1 :]] or found
                for subject, found in self.runs.items()
            }
            chosen = max(others, key=lambda subject: median(others[subject]))
            yield from self.runs[chosen][place : place + 1]

    def choice(self) -> Choice:
        return Choice(
            group=self.group,
            subject=self.best,
            micro_batch=self.micro_batches[-1],
            num_candidates=len(self.settings),
            num_failed=len(self.settings) - len(self.runs),
        )


def at_its_best(cells: Sequence[CellSummary]) -> tuple[MatchUp, ...]:
    """Returns a match-up for each pair of groups and question that both have numbers for.

    A question for which both have a single setting, the same one, is left out: that is the other comparison.
    """
    entries = _entries(cells)
    open_ones = [
        (question, entries[one][question], entries[two][question])
        for one, two in combinations(sorted(entries), 2)
        for question in sorted(entries[one].keys() & entries[two].keys())
        if len(entries[one][question].settings.keys() | entries[two][question].settings.keys()) > 1
    ]
    pairs = [(other.best, baseline.side, other.side) for _, baseline, other in open_ones]
    of_chosen = [(baseline.runs[baseline.best], other.runs[other.best]) for _, baseline, other in open_ones]
    held_out = [(list(baseline.held_out()), list(other.held_out())) for _, baseline, other in open_ones]
    found = map(_cautious, compare_sides(pairs, held_out), compare_sides(pairs, of_chosen))
    return tuple(
        MatchUp(
            sequences=question[-1],
            baseline=baseline.choice(),
            other=other.choice(),
            comparison=comparison,
            why=_why(baseline, other),
        )
        for (question, baseline, other), comparison in zip(open_ones, found, strict=True)
    )


def _cautious(held_out: Comparison, chosen: Comparison) -> Comparison:
    """The ratio of the runs that had no say in the choice, in an interval that holds that of the chosen
    settings' own runs too.

    Alone, the chosen settings' own runs favour the group with more settings (by 0.8 % for ten against one, at
    1 % noise), and the interval of the others is too narrow (equal groups called different in 10 %).
    """
    if held_out.low is None or held_out.high is None or chosen.low is None or chosen.high is None:
        return held_out
    low, high = min(held_out.low, chosen.low), max(held_out.high, chosen.high)
    return replace(held_out, low=low, high=high, verdict=verdict(low, high))


def _entries(cells: Sequence[CellSummary]) -> dict[str, dict[_Question, _Entry]]:
    """By group, the questions for which it has numbers."""
    found: dict[str, dict[_Question, _Entry]] = {}
    for group, sides in table_of(row for cell in cells for row in cell.rows).items():
        by_question: defaultdict[_Question, dict[Subject, Side]] = defaultdict(dict)
        for subject, side in sorted(sides.items()):
            by_question[_question_of(subject)][subject] = side
        entries = {question: _Entry(group=group, settings=own) for question, own in by_question.items()}
        found[group] = {question: entry for question, entry in entries.items() if entry.runs}
    return found


def _question_of(subject: Subject) -> _Question:
    return subject.model, subject.world_size, subject.seq_len, subject.precision, subject.sequences


def _order_of(row: Row) -> tuple[str, int, str]:
    return row.sweep or "", row.repeat or 0, row.run_id or ""


def _why(baseline: _Entry, other: _Entry) -> str:
    """Says what the groups' best settings do differently, and whether the other side could do it at all."""
    if baseline.best == other.best:
        return ""
    return "; ".join(
        f"{mine.group} with {', '.join(_own(mine, theirs.best))}{_of_the_other(mine.best, theirs)}"
        for mine, theirs in ((baseline, other), (other, baseline))
    )


def _own(entry: _Entry, others: Subject) -> Iterator[str]:
    """Yields the settings in which the group's best is not as the other group's best."""
    best = entry.best
    if best.strategy != others.strategy:
        yield best.strategy
    if (best.micro_batch, best.grad_accum) != (others.micro_batch, others.grad_accum):
        size = f"micro-batch {' and '.join(map(str, entry.micro_batches))}"
        yield f"{size} (the largest that fits)" if best.micro_batch == LARGEST else size
    if best.settings != others.settings:
        yield best.settings or "no further settings"


def _of_the_other(best: Subject, other: _Entry) -> str:
    """What became of the setting in the other group, if it has no numbers there."""
    if best in other.runs:
        return ""
    side = other.settings.get(best)
    return f" ({status_of(side.rows)} on {other.group})" if side else f" (not measured on {other.group})"
