"""The largest micro-batch that fits is found by real trials, some of which run out of memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jobs.training.benchmark.largest import measure_job
from jobs.training.health.failures import NothingFits
from jobs.training.task.context import Context
from jobs.training.task.job import Job, OptimizerConfig, Recipe, Strategy, Window
from jobs.training.task.presets import preset
from jobs.training.task.search.largest_batch import BatchSearch, divisors
from tests.live.ranks import run_ranks

STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "zero1", "zero2", "zero3")
SEQUENCES = 32
SEARCH = BatchSearch(sequences=SEQUENCES, candidates=divisors(SEQUENCES), guess=32)
# More than the state of the model and a small micro-batch, and less than the activations of the whole step.
BUDGET_BYTES = 110_000_000


def test_one_process_recovers_from_trials_out_of_memory(tmp_path: Path) -> None:
    _check(("ddp", "zero3"), tmp_path)


@pytest.mark.soak
def test_one_process_recovers_from_trials_out_of_memory_under_every_strategy(tmp_path: Path) -> None:
    _check(STRATEGIES, tmp_path)


def _check(strategies: tuple[Strategy, ...], tmp_path: Path) -> None:
    (found,) = run_ranks(_search_under, strategies, num_ranks=1, tmp_path=tmp_path)
    for strategy, (measured, told) in found.items():
        search = measured.search
        assert search is not None, strategy
        size = search.largest
        assert size is not None, strategy
        assert 32 in search.failed, f"{strategy}: {search}"
        assert search.num_trials <= search.most_trials
        assert measured.ranks[0].host_peak_growth_bytes < BUDGET_BYTES * 1.1
        assert [one.trying for one in told][-1] == size, "the answer is measured last"
        assert len(measured.step_times_s) == 1


def test_where_nothing_fits_that_is_the_failure_and_the_process_goes_on(tmp_path: Path) -> None:
    # What a first step imports counts too, and is most of what does not fit.
    (told,) = run_ranks(_search_in_vain, num_ranks=1, tmp_path=tmp_path, from_scratch=True)
    assert told.startswith("not even micro-batch 1 fits: ")


def _search_under(strategies: tuple[Strategy, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for strategy in strategies:
        told: list[BatchSearch] = []
        found[strategy] = (measure_job(_job(strategy), _context(), told.append, print), told)
    return found


def _search_in_vain() -> str:
    told: list[BatchSearch] = []
    said = ""
    try:
        measure_job(replace(_job("ddp"), memory_budget_bytes=20_000_000), _context(), told.append, print)
    except NothingFits as error:
        said = str(error)
    assert told[-1].failed[-1] == 1
    assert not told[-1].goes_on
    assert measure_job(
        replace(_job("ddp"), search=None, memory_budget_bytes=None), _context(), told.append, print
    )
    return said


def _context() -> Context:
    return Context(
        rank=dist.get_rank(), world_size=dist.get_world_size(), local_rank=0, device=torch.device("cpu")
    )


def _job(strategy: Strategy) -> Job:
    recipe = Recipe(
        model=preset("llama-tiny"),
        strategy=strategy,
        world_size=1,
        seq_len=64,
        micro_batch=1,
        grad_accum=SEQUENCES,
        precision="fp32",
        seed=0,
        optimizer=OptimizerConfig(),
    )
    return Job(
        run_id=strategy,
        recipe=recipe,
        window=Window(steps=1, warmup=1),
        vendor="cpu",
        memory_budget_bytes=BUDGET_BYTES,
        search=SEARCH,
    )
