"""Forecasts the space of a run in the store and on the nodes' disks, from the run's spec."""

from collections.abc import Sequence

from cluster.inventory import Inventory, Request
from cluster.placement import Placed, Refused, place
from jobs.doctor.examination import Forecast
from jobs.spec_schema.run_spec import RunSpec

# The weights and AdamW's two moments in fp32. Each is stored once, whatever the number of ranks.
_BYTES_PER_PARAMETER = 12
# The generation being saved, and one that waits to be verified.
_UNDER_WAY = 2
_LEAST_KEPT = 2


def forecast(spec: RunSpec, inventory: Inventory) -> Forecast:
    size = 0 if spec.saving() is None else _BYTES_PER_PARAMETER * spec.model.config.num_parameters
    answers = [_largest_place(spec, group, inventory) for group in spec.group]
    refusals = [answer.reason for answer in answers if isinstance(answer, Refused)]
    local = spec.checkpoint.local
    return Forecast(
        run=spec.name,
        generation_bytes=size,
        num_kept=_num_kept(spec),
        grows=_growth(spec),
        local_folder=local.dir,
        local_bytes=round(size * (local.keep + 1) * _fullest_share(answers)) if local.dir else None,
        local_max_bytes=local.max_bytes,
        save_every_s=None if spec.checkpoint.every_steps else spec.checkpoint.every_s,
        refused="; ".join(refusals) if len(refusals) == len(answers) else None,
    )


def _largest_place(spec: RunSpec, group: str, inventory: Inventory) -> Placed | Refused:
    """The placement of the largest size that fits. If none fits, the refusal of the smallest size."""
    requests = [Request(group=group, num_workers=size) for size in reversed(spec.sizes)]
    answers = place(requests, inventory)
    return next((answer for answer in answers if isinstance(answer, Placed)), answers[-1])


def _num_kept(spec: RunSpec) -> int:
    """The most generations kept at a time: all retention rules added up, but at most all that are saved."""
    keeping = spec.checkpoint.retention
    ends = _num_epochs(spec) // (keeping.every_epochs or 1) if keeping.epochs or keeping.every_epochs else 0
    spaced = _num_steps(spec) // keeping.every_steps if keeping.every_steps else 0
    best = keeping.best if spec.eval.every_steps else 0
    kept = max(keeping.last, _LEAST_KEPT) + ends + spaced + best + _UNDER_WAY
    saved = _num_saved(spec)
    return kept if saved is None else min(kept, saved)


def _num_saved(spec: RunSpec) -> int | None:
    """The number of generations that a run saves, with those at the ends of epochs and of the run.

    None if saves follow the clock, or if the number of steps is not known before the tokens are read.
    """
    every = spec.checkpoint.every_steps
    if every is None or (spec.steps is None and spec.data.kind == "tokens"):
        return None
    return _num_steps(spec) // (every * max(1, spec.checkpoint.store.every)) + _num_epochs(spec) + 1


def _num_epochs(spec: RunSpec) -> int:
    if spec.epochs is not None:
        return spec.epochs
    if spec.data.kind == "tokens":
        return 0  # the number of tokens is not known here
    return _num_steps(spec) * spec.recipe().sequences_per_step // spec.data.samples


def _num_steps(spec: RunSpec) -> int:
    return spec.num_steps(spec.data.samples)


def _growth(spec: RunSpec) -> str | None:
    every_s = spec.checkpoint.retention.every_s
    return f"every {every_s:,.0f} s" if every_s and spec.saving() else None


def _fullest_share(answers: Sequence[Placed | Refused]) -> float:
    """The share of a generation on the node with the most ranks, of all groups in which the run may be; 1 if
    it can't be placed.
    """
    ranks = [
        [share.num_workers for share in answer.shares] for answer in answers if isinstance(answer, Placed)
    ]
    return max((max(workers) / sum(workers) for workers in ranks), default=1.0)
