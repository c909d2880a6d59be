"""Cells to judge, made up: four ok runs of ddp on two devices, but for what a test changes."""

from typing import Any

from reporting.analysis.findings import CellSummary, Estimate, Subject
from reporting.results.rows import Row

SUBJECT: dict[str, Any] = {
    "model": "llama-1b", "strategy": "ddp", "world_size": 2, "seq_len": 2048, "micro_batch": 1,
    "grad_accum": 4, "precision": "bf16",
}  # fmt: skip


def cell(*, row: dict[str, Any] | None = None, num_runs: int = 4, **changes: Any) -> CellSummary:
    """``changes`` are of the subject or the summary; ``tokens_per_sec`` may be a plain number."""
    subject = Subject(**{name: changes.pop(name, value) for name, value in SUBJECT.items()})
    rate = changes.pop("tokens_per_sec", 8_000.0)
    group = changes.get("group", "blue")
    rows = changes.pop("rows", (Row(source="made up", group=group, **(row or {})),) * num_runs)
    values: dict[str, Any] = {
        **dict.fromkeys(CellSummary.__dataclass_fields__),
        "cell_id": f"{group}-{subject}",
        "sweep": "trial",
        "group": group,
        "subject": subject,
        "status": "ok",
        "num_failed": 0,
        "flags": (),
        "num_severe_outliers": 0,
        "num_steps": 400,
        "tokens_per_sec": estimate(rate, num_runs) if rate is not None else None,
        "rows": rows,
    }
    return CellSummary(**{**values, **changes})


def estimate(median: float, num_runs: int = 4) -> Estimate:
    return Estimate(median=median, low=None, high=None, cv=None, num_runs=num_runs)
