"""Finds the largest micro-batch that fits, by doing two steps with each that is tried, and measures it.

Every rank calls ``measure_job`` with the same job. Whether a trial fits is known on all ranks: with one rank,
this process recovers from a trial that ran out of memory. With more ranks it raises, because peers may be
stuck in a collective; whoever started the group goes on with the search in another one.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from cluster.probe import door
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.benchmark.measure import enter, measure, note_step
from jobs.training.device import host_memory
from jobs.training.device.rank_device import check_ranks
from jobs.training.health.failures import NothingFits, failure_of, is_out_of_memory, wanted_bytes
from jobs.training.step import train_step
from jobs.training.strategies.build import build, load
from jobs.training.strategies.memory import release_memory
from jobs.training.task.context import BUILDING, Context
from jobs.training.task.job import Job
from jobs.training.task.measurement import Measurement
from jobs.training.task.search.largest_batch import BatchSearch

# The second step has all that any later one has: the moments, which the first update makes.
_STEPS = 2
# The second micro-batch of a step has all that any later one has: gradients, which the first one makes.
_MICRO_BATCHES = 2

Tell = Callable[[BatchSearch], None]
Keep = Callable[[Measurement], None]
_Work = Callable[[Job, Context], Measurement | None]


def measure_job(job: Job, context: Context, tell: Tell, keep: Keep) -> Measurement | None:
    """Measures ``job``. If it has a search, this goes on with that, and tells what is about to be tried.

    ``keep`` is as in ``measure``. Once it has numbers, the search is over.

    Raises ``NothingFits`` if not even the smallest micro-batch fits, and what ``measure`` raises.
    """
    if job.search is None:
        return measure(job, context, keep=keep)
    search, problem = job.search, NothingFits("no micro-batch fits: each ran out of memory before", None)
    job = replace(job, memory_budget_bytes=_after_loading(job))
    while search.goes_on:
        trial = search.next_trial
        size = trial or search.largest
        assert size is not None
        search = search.now_trying(size)
        tell(search)
        part = replace(job, recipe=job.recipe.in_micro_batches_of(size))
        done = _with_recovery(_try if trial else _Measure(search, keep), part, context)
        if isinstance(done, NothingFits):
            search, problem = search.ran_out(), done
        elif trial:
            search = search.fits()
        else:
            return done
    tell(search)
    raise problem


class _Measure:
    """Measures what a search has found. ``has_numbers``: what fails from then on is no trial."""

    def __init__(self, search: BatchSearch, keep: Keep) -> None:
        self._search, self._keep = replace(search, trying=None), keep
        self.has_numbers = False

    def __call__(self, job: Job, context: Context) -> Measurement | None:
        measured = measure(job, context, keep=self._keep_numbers)
        return measured and replace(measured, search=self._search)

    def _keep_numbers(self, measured: Measurement) -> None:
        self.has_numbers = True
        self._keep(replace(measured, search=self._search))


def _after_loading(job: Job) -> int | None:
    """What is left of the budget when all is imported that a step needs.

    An import that runs out of memory leaves half of a module behind, and a process that can't go on.
    """
    before = host_memory.data_bytes()
    load(job.recipe.strategy)
    import_module("torch._dynamo")  # Optimizers import it with their first update.
    budget = job.memory_budget_bytes
    return None if budget is None else max(0, budget - (host_memory.data_bytes() - before))


def _with_recovery(work: _Work, job: Job, context: Context) -> Measurement | NothingFits | None:
    """What ``work`` returns, or why it ran out of memory, with all of that memory free again."""
    try:
        return work(job, context)
    except Exception as error:
        has_numbers = isinstance(work, _Measure) and work.has_numbers
        if context.world_size > 1 or has_numbers or not is_out_of_memory(error):
            raise
        reason = failure_of(error, context.status.phase, context.rank).reason
        text = f"not even micro-batch {job.recipe.micro_batch} fits: {reason}"
        problem = NothingFits(text, wanted_bytes(error))
    # By now the error is gone, and the frames that held what the work had allocated.
    release_memory()
    return problem


def _try(job: Job, context: Context) -> None:
    """Does what needs the most memory: two steps of at most two micro-batches."""
    enter(context, "setup", 0)
    check_ranks(context, job)
    host_memory.return_large_pieces()
    resident_before = host_memory.reset_peak()
    recipe = replace(job.recipe, grad_accum=min(_MICRO_BATCHES, job.recipe.grad_accum))
    context.status.doing = BUILDING
    with host_memory.budget(job.memory_budget_bytes):
        engine = build(recipe, context.device)
        try:
            feed = BatchFeed(recipe, context.rank, context.device)
            enter(context, "warmup", _STEPS)
            for step in range(_STEPS):
                train_step(engine, feed.of_step(step)).item()
                door.synchronize(context.device)
                note_step(context, step + 1, 0.0)
            _check_budget(job.memory_budget_bytes, host_memory.peak_bytes() - resident_before)
        finally:
            engine.close()


def _check_budget(budget_bytes: int | None, grown_bytes: int) -> None:
    """Raises ``MemoryError`` for a process that stays within its limit only because of an earlier trial.

    What was freed into malloc's heap still counts as data of the process, and so raises its next limit.
    """
    if budget_bytes is not None and grown_bytes > budget_bytes:
        raise MemoryError(f"it took {grown_bytes} bytes, and may take {budget_bytes}")
