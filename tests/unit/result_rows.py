"""Rows to summarise and compare; each argument changes what the test is about."""

from itertools import count
from typing import Any

from reporting.results.rows import Row

_numbers = count()


def row(tokens_per_sec: float | None = 1000.0, **changes: Any) -> Row:
    """An ok run of its own, or a failed one where there is no throughput."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "source": f"sweeps/trial/runs/{number}/result.json",
        "sweep": "trial",
        "cell_id": "cell",
        "run_id": f"run-{number}",
        "group": "nvidia",
        "vendor": "nvidia",
        "model": "llama-tiny",
        "strategy": "ddp",
        "world_size": 1,
        "seq_len": 64,
        "per_device_batch": 1,
        "grad_accum": 1,
        "precision": "fp32",
        "status": "oom" if tokens_per_sec is None else "ok",
        "tokens_per_sec": tokens_per_sec,
        "mean_step_time_sec": None if tokens_per_sec is None else 64 / tokens_per_sec,
    }
    return Row(**{**values, **changes})


def rows(*throughputs: float | None, **changes: Any) -> list[Row]:
    return [row(value, **changes) for value in throughputs]
