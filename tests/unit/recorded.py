"""Attempts of made-up long runs, and the parts that they leave."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from checkpointing.stores.contract import Store
from reporting.recording.attempts import DeviceSample, RecordedAttempt
from reporting.recording.parts import PartName, encode_part, table_of

NOON_S = 1_800_000_000.0


def attempt(**changes: Any) -> RecordedAttempt:
    values: dict[str, Any] = {
        "run": "r",
        "term": 1,
        "leased_s": NOON_S,
        "group": "local",
        "vendor": "cpu",
        "model": "llama-tiny",
        "strategy": "ddp",
        "world_size": 1,
        "num_steps": 100,
        "tokens_per_step": 64,
        "start_step": 0,
    }
    return RecordedAttempt(**{**values, **changes})


def step_row(
    step: int,
    *,
    ended_s: float = NOON_S,
    step_s: float = 1.0,
    loss: float | None = 2.0,
    source_losses: str | None = None,
) -> tuple[Any, ...]:
    return (step, step, 1, ended_s, step_s, 0.0, 64, loss, None, None, None, None, source_losses)


def incident_row(
    kind: str,
    *,
    happened_s: float = NOON_S,
    step: int | None = None,
    seconds: float | None = None,
    text: str = "",
) -> tuple[Any, ...]:
    return (kind, happened_s, step, seconds, None, None, None, None, text)


def sample_row(sample: DeviceSample, taken_s: float) -> tuple[Any, ...]:
    device, *told = astuple(sample)
    return (device, taken_s, *told)


def leave(
    store: Store,
    of: RecordedAttempt,
    table: str,
    rows: Sequence[tuple[Any, ...]],
    *,
    number: int = 1,
    rank: int = 0,
) -> PartName:
    name = PartName(run=of.run, table=table, term=of.term, rank=rank, first=number, last=number)
    store.create(str(name), encode_part(table, of, table_of(table, of, rank, rows)))
    return name
