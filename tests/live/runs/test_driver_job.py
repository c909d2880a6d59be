"""What a supervisor gives a Ray job, and what it makes of how that ended."""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobInfo, JobStatus

from jobs.cli.arguments import train_parser
from jobs.runs.driver_job import DriverJob, end_of
from jobs.runs.driver_process import DriverEnd
from jobs.runs.supervisor import keep_running
from jobs.train import main


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (JobInfo(status=JobStatus.RUNNING, entrypoint=""), None),
        (JobInfo(status=JobStatus.SUCCEEDED, entrypoint=""), DriverEnd(code=0, why="the job has succeeded")),
        (
            JobInfo(status=JobStatus.STOPPED, entrypoint=""),
            DriverEnd(code=None, why="the job was stopped", is_stopped=True),
        ),
        (
            JobInfo(status=JobStatus.FAILED, entrypoint="", driver_exit_code=2),
            DriverEnd(code=2, why="the driver ended with exit code 2"),
        ),
        (
            JobInfo(
                status=JobStatus.FAILED,
                entrypoint="",
                driver_exit_code=137,
                message="Job entrypoint command failed with exit code 137, last available logs (cut):\nx",
            ),
            DriverEnd(code=None, why="Job entrypoint command failed with exit code 137"),
        ),
        (JobInfo(status=JobStatus.FAILED, entrypoint=""), DriverEnd(code=None, why="Job failed.")),
    ],
)
def test_only_an_exit_code_of_ours_is_a_drivers_own_word(job: JobInfo, end: DriverEnd | None) -> None:
    assert end_of(job) == end


class Client:
    """Answers what it is told to, the next thing each time."""

    def __init__(self, *answers: JobInfo | Exception, logs: str | Exception = "") -> None:
        self._answers = list(answers)
        self._logs = logs

    def get_job_logs(self, _name: str) -> str:
        if isinstance(self._logs, Exception):
            raise self._logs
        return self._logs

    def get_job_info(self, _name: str) -> JobInfo:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_server_that_does_not_answer_hides_its_job_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.runs.driver_job._ASK_EVERY_S", 0.0)
    running = JobInfo(status=JobStatus.RUNNING, entrypoint="")
    away = ConnectionError("refused")
    job = DriverJob(Client(running, away, away, running, RuntimeError("job 'j' does not exist")), "j", print)
    seen = []
    for _ in range(4):
        assert job.end() is None
        seen.append(job.unseen_s())
    assert seen[0] == seen[3] == 0.0 < seen[1] < seen[2]
    assert job.end() == DriverEnd(code=None, why="the cluster has forgotten job j")


SUCCEEDED = JobInfo(status=JobStatus.SUCCEEDED, entrypoint="")
STOPPED = JobInfo(status=JobStatus.STOPPED, entrypoint="")
DIED = JobInfo(status=JobStatus.FAILED, entrypoint="", driver_exit_code=137)


@pytest.mark.parametrize(
    ("info", "logs", "output", "errors"),
    [
        (SUCCEEDED, "r: step 1\nr: finished at step 2\n\n", "", "r: finished at step 2\n"),
        (SUCCEEDED, 'r: finished\n{"run": "r"}\n', '{"run": "r"}\n', ""),
        (STOPPED, "r: stopped at step 2", "", "r: stopped at step 2\n"),
        (DIED, "r: step 1\n", "", ""),
        (SUCCEEDED, "", "", ""),
        (SUCCEEDED, ConnectionError("refused"), "", ""),
    ],
    ids=["finished", "as JSON", "stopped", "died", "said nothing", "no answer"],
)
def test_what_a_job_said_last_is_said_here_if_it_ended_by_itself(
    info: JobInfo, logs: str | Exception, output: str, errors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = DriverJob(Client(info, logs=logs), "j", lambda text: print(text, file=sys.stderr))
    assert job.end() == end_of(info)
    told = capsys.readouterr()
    assert (told.out, told.err) == (output, errors)


@dataclass
class Server:
    """Where every job succeeds at once."""

    submitted: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, _address: str) -> "Server":
        return self

    def submit_job(self, **asked: Any) -> str:
        self.submitted.append(asked)
        # As Ray's client does for each file that it leaves out.
        logging.getLogger("ray._private.runtime_env.working_dir").warning("Directory '.git' is now ignored")
        # Its level is its own, whatever that of Ray's is.
        sdk = logging.getLogger("ray.dashboard.modules.dashboard_sdk")
        sdk.setLevel(logging.INFO)
        sdk.info("Uploading package gcs://_ray_pkg_0.zip.")
        return "a job"

    def get_job_logs(self, _name: str) -> str:
        return "r: finished at step 8\n"

    def get_job_info(self, _name: str) -> JobInfo:
        return JobInfo(status=JobStatus.SUCCEEDED, entrypoint="")


@pytest.mark.parametrize(
    ("flags", "wait_s"), [((), "4500"), (("--set", "checkpoint.deadline_s=1000"), "7300")]
)
def test_a_kept_job_is_given_the_time_that_its_own_last_save_may_take(
    flags: tuple[str, ...], wait_s: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setattr("jobs.runs.driver_job.JobSubmissionClient", server)
    command = ["--keep", "--address", "http://head:8265", "--store", str(tmp_path), *flags]
    assert keep_running(train_parser("longhaul train").parse_args(command)) == 0
    (asked,) = server.submitted
    assert asked["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == wait_s


def test_a_submission_says_two_lines_and_nothing_of_what_ray_leaves_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("jobs.runs.driver_job.JobSubmissionClient", Server())
    ray = logging.getLogger("ray")
    ray.addHandler(caplog.handler)
    try:
        command = ["--keep", "--address", "http://head:8265", "--store", str(tmp_path)]
        assert keep_running(train_parser("longhaul train").parse_args(command)) == 0
    finally:
        ray.removeHandler(caplog.handler)
    assert capsys.readouterr().err.splitlines() == [
        "submitted as job a job; `ray job logs --address http://head:8265 a job --follow` shows it",
        "r: finished at step 8",
    ]
    assert caplog.records == []
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize(
    "setting", ["environment.API_KEY=hunter2", "environment={API_KEY: hunter2}"], ids=["one", "among others"]
)
def test_a_secret_does_not_go_into_rays_list_of_jobs(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    monkeypatch.setattr("jobs.runs.driver_job.JobSubmissionClient", server)
    command = ["--keep", "--address", "http://head:8265", "--store", str(tmp_path), "--set", setting]
    assert keep_running(train_parser("longhaul train").parse_args(command)) == 2
    assert server.submitted == []
    said = capsys.readouterr().err
    assert "Ray would show it in its list of jobs" in said
    assert "hunter2" not in said


def test_a_job_is_told_where_the_secrets_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr("jobs.runs.driver_job.JobSubmissionClient", server)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text("hunter2", encoding="utf-8")
    command = ["--keep", "--address", "http://head:8265", "--store", str(tmp_path)]
    command += ["--set", "environment.API_KEY=@key"]
    assert keep_running(train_parser("longhaul train").parse_args(command)) == 0
    (asked,) = server.submitted
    assert f"--set environment.API_KEY=@{tmp_path / 'key'} " in asked["entrypoint"]
    assert "hunter2" not in str(asked)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--address", "http://head:8265"), "--address: only --keep submits jobs; give both"),
        (("--keep", "--address", "head:6379"), "--address: 'head:6379' takes no jobs; expected such as http"),
    ],
)
def test_an_address_that_nothing_would_use_is_refused(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--store", str(tmp_path / "store")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
