"""Decides which cell is each question's best, and writes that down as ``sweeps/<sweep>/best.json``.

The fastest by the median of its repeats is the best. The others are compared with it as a report compares
groups.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from jobs.sweeps.grid import Cell
from jobs.sweeps.search.questions import Question, searched_values
from reporting.analysis.findings import Estimate
from reporting.analysis.statistics import THRESHOLD, Contrast, Sample, contrasts, estimate
from reporting.results.records import RunRecord

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec

BEST_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A finalist with its runs that are ok. ``contrast`` compares it with the best; the best has none."""

    cell: Cell
    records: tuple[RunRecord, ...]
    tokens_per_sec: Estimate
    contrast: Contrast | None = None

    @property
    def is_tied(self) -> bool:
        """Whether it is not shown to be slower than the best."""
        if self.contrast is None or self.contrast.ratio is None:
            return False
        if self.contrast.verdict == "too few repeats":
            return self.contrast.ratio >= 1 - THRESHOLD
        return self.contrast.verdict in ("equivalent", "inconclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``ranked`` has the best first. ``failed`` are the candidates that left a row without numbers.

    ``excluded`` are the cells that the plan refuses, which are never started. ``records`` are all rows that
    the search took.
    """

    question: Question
    is_decided: bool
    ranked: tuple[Ranked, ...]
    failed: tuple[RunRecord, ...]
    excluded: tuple[Cell, ...]
    records: tuple[RunRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What was measured, and what the whole grid would take: with its warm-ups as long as those seen."""

    num_cells: int
    num_runs: int
    num_steps: int
    grid_runs: int
    grid_steps: int


def ranked(finalists: Iterable[tuple[Cell, Sequence[RunRecord]]]) -> tuple[Ranked, ...]:
    """The finalists that have numbers, fastest first."""
    found = [one for cell, records in finalists if (one := _ranked(cell, records))]
    ordered = sorted(found, key=lambda one: -one.tokens_per_sec.median)
    pairs = [(_sample(ordered[0]), _sample(other)) for other in ordered[1:]]
    others = zip(ordered[1:], contrasts(pairs), strict=True)
    return (
        *ordered[:1],
        *(
            Ranked(cell=one.cell, records=one.records, tokens_per_sec=one.tokens_per_sec, contrast=contrast)
            for one, contrast in others
        ),
    )


def cost_of(spec: "SweepSpec", decisions: Sequence[Decision]) -> Cost:
    """Cells that failed or are excluded have no steps in the grid."""
    records = [record for decision in decisions for record in decision.records]
    done = [record for record in records if record.status == "ok"]
    warmup = fmean(record.warmup_steps or 0 for record in done) if done else spec.measure.warmup
    cells = sum(len(one.question.cells) - len(one.excluded) for one in decisions)
    with_numbers = cells - sum(len(one.failed) for one in decisions)
    return Cost(
        num_cells=cells,
        num_runs=len(records),
        num_steps=sum((record.steps or 0) + (record.warmup_steps or 0) for record in done),
        grid_runs=cells * spec.repeats,
        grid_steps=round(with_numbers * spec.repeats * (spec.measure.steps + warmup)),
    )


def document(spec: "SweepSpec", decisions: Sequence[Decision], cost: Cost) -> dict[str, Any]:
    return {
        "schema_version": BEST_SCHEMA_VERSION,
        "sweep": spec.name,
        "over": list(spec.best.over),
        "questions": [_as_json(spec, decision) for decision in decisions],
        "cost": asdict(cost),
    }


def _as_json(spec: "SweepSpec", decision: Decision) -> dict[str, Any]:
    question, order = decision.question, decision.ranked
    return {
        "asked": dict(question.asked),
        "sequences_per_step": question.sequences_per_step,
        "num_candidates": len(question.cells),
        "is_decided": decision.is_decided,
        "best": _ranked_json(spec, order[0]) if order else None,
        "others": [_ranked_json(spec, one) for one in order[1:]],
        "failed": [
            {"cell_id": record.cell_id, "run_id": record.run_id, "status": record.status}
            for record in decision.failed
        ],
        "excluded": [cell.cell_id for cell in decision.excluded],
    }


def _ranked_json(spec: "SweepSpec", one: Ranked) -> dict[str, Any]:
    speed, contrast = one.tokens_per_sec, one.contrast
    against = {
        "ratio": contrast.ratio,
        "ratio_low": contrast.low,
        "ratio_high": contrast.high,
        "verdict": contrast.verdict,
        "is_tied": one.is_tied,
    } if contrast else {}  # fmt: skip
    return {
        "cell_id": one.cell.cell_id,
        "settings": searched_values(spec, one.cell),
        "micro_batch": one.records[0].per_device_batch,
        "grad_accum": one.records[0].grad_accum,
        "tokens_per_sec": speed.median,
        "tokens_per_sec_low": speed.low,
        "tokens_per_sec_high": speed.high,
        "run_ids": [record.run_id for record in one.records],
        **against,
    }


def _ranked(cell: Cell, records: Sequence[RunRecord]) -> Ranked | None:
    ok = tuple(record for record in records if record.status == "ok" and record.tokens_per_sec)
    speed = estimate([record.tokens_per_sec for record in ok if record.tokens_per_sec])
    return Ranked(cell=cell, records=ok, tokens_per_sec=speed) if speed else None


def _sample(one: Ranked) -> Sample:
    return [record.tokens_per_sec for record in one.records if record.tokens_per_sec]
