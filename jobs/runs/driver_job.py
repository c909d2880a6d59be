"""A run's driver as a job on a Ray cluster, submitted and followed through the cluster's job server.

The cluster may go away and come back meanwhile. A job that the cluster no longer knows died with its head
node.
"""

import logging
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.job_submission import JobStatus, JobSubmissionClient

from checkpointing.stores.transfers import within
from jobs.commandline.output import say
from jobs.commandline.set_values import seen_from_elsewhere
from jobs.runs.driver_process import EXIT_CODES, Away, DriverEnd
from jobs.training.task.stop_request import StopRequest

ROOT = Path(__file__).resolve().parents[2]
_ASK_EVERY_S = 2.0
# Ray's client waits forever for a server that falls silent.
_ANSWER_TIMEOUT_S = 30.0
# The first submission uploads the source tree.
_SUBMIT_TIMEOUT_S = 300.0
_UNKNOWN = "does not exist"
# Raised if the server is not there, not ready or not a Ray job server.
_NO_ANSWER = (OSError, RuntimeError)


class JobServer:
    """Starts drivers as jobs on the Ray cluster at ``address``. Each job gets the environment
    ``variables``.
    """

    def __init__(self, address: str, variables: dict[str, str], say: Callable[[str], None]) -> None:
        self._address = address
        self._variables = variables
        self._say = say

    def start(self, arguments: list[str]) -> "DriverJob":
        """Submits a driver together with the source tree; raises ``Away`` if the server takes no job.

        A spec outside the source tree, and a file of a setting, must exist at the same path on the head node.
        """
        try:
            client, name = within(_SUBMIT_TIMEOUT_S, lambda: self._submit(arguments))
        except _NO_ANSWER as error:
            raise Away(f"{self._address} takes no job ({_first_line(error)})") from error
        self._say(
            f"submitted as job {name}; `ray job logs --address {self._address} {name} --follow` shows it"
        )
        return DriverJob(client, name, self._say)

    def _submit(self, arguments: list[str]) -> tuple[JobSubmissionClient, str]:
        client = JobSubmissionClient(self._address)
        with _silent_uploads():
            name = client.submit_job(
                entrypoint=shlex.join(["python", "jobs/train.py", *_as_seen_there(arguments)]),
                submission_id=f"longhaul-{secrets.token_hex(6)}",
                runtime_env={"working_dir": str(ROOT), "env_vars": self._variables},
            )
        return client, name


class DriverJob:
    """A submitted driver. While the job server does not answer, the driver counts as still running.

    What it said last goes to ``say`` at its end; where that is JSON, to standard output.
    """

    def __init__(self, client: JobSubmissionClient, name: str, say: Callable[[str], None]) -> None:
        self._client = client
        self._name = name
        self._say = say
        self._next_s = 0.0
        self._unseen_since_s: float | None = None
        self._is_to_stop = False

    def end(self) -> DriverEnd | None:
        if time.monotonic() < self._next_s:
            return None
        try:
            if self._is_to_stop:
                self._ask_to_stop()
            info = within(_ANSWER_TIMEOUT_S, lambda: self._client.get_job_info(self._name))
        except _NO_ANSWER as error:
            if _UNKNOWN in str(error):
                return DriverEnd(code=None, why=f"the cluster has forgotten job {self._name}")
            self._unseen_since_s = self._unseen_since_s or time.monotonic()
            return None
        finally:
            self._next_s = time.monotonic() + _ASK_EVERY_S
        self._unseen_since_s = None
        end = end_of(info)
        if end is not None and (end.code is not None or end.is_stopped):
            self._relay_last_line()
        return end

    def unseen_s(self) -> float:
        return time.monotonic() - self._unseen_since_s if self._unseen_since_s else 0.0

    def stop(self, stop_request: StopRequest) -> None:
        """Asks Ray to stop the job; does not wait. Ray sends SIGTERM and waits as long as the job's variables
        say.
        """
        self._is_to_stop, self._next_s = True, 0.0

    def kill(self) -> None:
        with suppress(*_NO_ANSWER):
            self._ask_to_stop()

    def _relay_last_line(self) -> None:
        """The end of a driver that ended by itself. If its output is not to be had, nothing is said of it."""
        with suppress(*_NO_ANSWER):
            text = within(_ANSWER_TIMEOUT_S, lambda: self._client.get_job_logs(self._name))
            if last := text.rstrip().rpartition("\n")[2]:
                if last.startswith("{"):
                    say(last, to=sys.stdout)
                else:
                    self._say(last)

    def _ask_to_stop(self) -> None:
        """Asks once. ``_is_to_stop`` stays set until the server has answered, so ``end`` repeats the
        request.
        """
        within(_ANSWER_TIMEOUT_S, lambda: self._client.stop_job(self._name))
        self._is_to_stop = False


@contextmanager
def _silent_uploads() -> Iterator[None]:
    """Ray names each file and folder that it does not upload, several times. Its errors are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def end_of(info: Any) -> DriverEnd | None:
    """How the job ended; None while it runs. Ray keeps no exit code of a job that was stopped on request."""
    match info.status:
        case JobStatus.SUCCEEDED:
            return DriverEnd(code=0, why="the job has succeeded")
        case JobStatus.STOPPED:
            return DriverEnd(code=None, why="the job was stopped", is_stopped=True)
        case JobStatus.FAILED if info.driver_exit_code in EXIT_CODES:
            return DriverEnd(
                code=info.driver_exit_code, why=f"the driver ended with exit code {info.driver_exit_code}"
            )
        case JobStatus.FAILED:
            # Ray's message continues with the driver's last log lines.
            why = (info.message or "its job failed").partition("\n")[0].partition(", last available logs")[0]
            return DriverEnd(code=None, why=why)
        case _:
            return None


def _as_seen_there(arguments: list[str]) -> list[str]:
    """The arguments with the spec's path relative to the source tree, else absolute. Files of settings are
    absolute.
    """
    spec = Path(arguments[0]).resolve()
    place = spec.relative_to(ROOT) if spec.is_relative_to(ROOT) else spec
    return [str(place), *map(seen_from_elsewhere, arguments[1:])]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
