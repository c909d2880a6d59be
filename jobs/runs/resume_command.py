"""How a stopped run goes on: the command that resumes it, and the note that it stopped."""

import argparse
import shlex
from contextlib import suppress
from math import ceil

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import LogView, Stopped
from checkpointing.stores.contract import StoreError
from checkpointing.stores.transfers import within
from jobs.training.task.events import Ended
from jobs.training.task.stop_request import StopRequest

# What is on its way (three), the last cut's memory (one), and that save (three); then the log is told.
_DEADLINES_OF_THE_END = 7
_LAST_WORD_S = 300.0
# A store that is away may hold up whoever writes to it for many minutes.
_NOTE_TIMEOUT_S = 15.0


def note_stop(repository: Repository, term: int | None, wish: StopRequest) -> Ended:
    """How a run stopped of which nothing was going on: where its newest checkpoint is.

    Its log says so too, if this driver got a ``term``.
    """
    newest = latest(of_this_life(repository.view))
    step = newest.step if newest else 0
    if term is not None:
        with suppress(StoreError, Fenced, TimeoutError):
            within(_NOTE_TIMEOUT_S, lambda: repository.append(Stopped(step=step, why=wish.why), term=term))
    return Ended(step=step, loss=None, generation=newest.name if newest else None, wish=wish)


def job_variables(deadline_s: float) -> dict[str, str]:
    """What a job needs so that ``ray job stop`` waits for the last save of a run whose saves have that
    ``checkpoint.deadline_s``: Ray kills after 3 s otherwise.
    """
    wait_s = ceil(_DEADLINES_OF_THE_END * deadline_s + _LAST_WORD_S)
    return {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": str(wait_s)}


def resume_command(args: argparse.Namespace, repository: Repository, term: int) -> str:
    """What goes on with a run of which a driver got ``term`` for its first attempt, or would have got it."""
    with suppress(StoreError, TimeoutError):
        within(_NOTE_TIMEOUT_S, repository.refresh)
    return shlex.join(["longhaul", "train", *resume_arguments(args, repository.view, term)])


def resume_arguments(args: argparse.Namespace, view: LogView, term: int) -> list[str]:
    """What was asked of ``longhaul train``, but to begin afresh or elsewhere only as long as no attempt from
    ``term`` on has begun the new life, or saved.
    """
    words = [str(args.spec)]
    for flag, value in (("--store", args.store), ("--run", args.run), ("--cluster", args.cluster)):
        words += [flag, str(value)] if value else []
    words += ["--executor", args.executor] if args.executor else []
    words += ["--no-retry"] if args.no_retry else []
    for flag, values in (("--set", args.set), ("--exclude-node", args.exclude_node)):
        words += [word for value in values for word in (flag, value)]
    words += ["--fresh"] if args.fresh and not view.has_begun_since(term) else []
    words += ["--resume", args.resume] if args.resume != "latest" and not view.has_saved_since(term) else []
    return words
