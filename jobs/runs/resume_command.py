"""The command that resumes a stopped run, and the note in the log that the run stopped."""

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
from jobs.commandline.set_values import without_secret
from jobs.launch.torchrun import command_again
from jobs.training.task.events import Ended
from jobs.training.task.stop_request import StopRequest

# Saves under way (three deadlines), memory for the last save (one) and the last save itself (three). The
# log entry comes after that.
_DEADLINES_OF_THE_END = 7
_LAST_WORD_S = 300.0
# A store that is away may block a writer for many minutes.
_NOTE_TIMEOUT_S = 15.0


def note_stop(repository: Repository, term: int | None, stop_request: StopRequest) -> Ended:
    """The end of a run that stopped while no attempt was running: at the step of its newest checkpoint.

    If this driver got a ``term``, the stop is also written to the log, unless the store is away or the term
    fenced.
    """
    newest = latest(of_this_life(repository.view))
    step = newest.step if newest else 0
    if term is not None:
        with suppress(StoreError, Fenced, TimeoutError):
            within(
                _NOTE_TIMEOUT_S,
                lambda: repository.append(Stopped(step=step, why=stop_request.why), term=term),
            )
    return Ended(step=step, loss=None, generation=newest.name if newest else None, stop_request=stop_request)


def job_variables(deadline_s: float) -> dict[str, str]:
    """The environment variables that make ``ray job stop`` wait for a run's last save; Ray's default is to
    kill after 3 s.

    ``deadline_s`` is the run's ``checkpoint.deadline_s``.
    """
    wait_s = ceil(_DEADLINES_OF_THE_END * deadline_s + _LAST_WORD_S)
    return {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": str(wait_s)}


def resume_command(args: argparse.Namespace, repository: Repository, term: int) -> str:
    """The command that resumes the run, for people: without the values of secrets. ``term`` is the one that
    this driver's first attempt got, or would have got.
    """
    with suppress(StoreError, TimeoutError):
        within(_NOTE_TIMEOUT_S, repository.refresh)
    shown = argparse.Namespace(**vars(args) | {"set": [without_secret(setting) for setting in args.set]})
    return shlex.join(command_again(["train", *resume_arguments(shown, repository.view, term)]))


def resume_arguments(args: argparse.Namespace, view: LogView, term: int) -> list[str]:
    """The arguments of ``longhaul train`` as the user gave them.

    ``--fresh`` is left out once an attempt from ``term`` on has begun the new life, and ``--resume`` once one
    has saved.
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
