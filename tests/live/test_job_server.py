"""What a keeper makes of how a Ray job ended."""

import pytest
from ray.job_submission import JobInfo, JobStatus

from jobs.drivers import End
from jobs.launch.job_server import Job, end_of


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (JobInfo(status=JobStatus.RUNNING, entrypoint=""), None),
        (JobInfo(status=JobStatus.SUCCEEDED, entrypoint=""), End(code=0, why="the job has succeeded")),
        (
            JobInfo(status=JobStatus.STOPPED, entrypoint=""),
            End(code=None, why="the job was stopped", is_stopped=True),
        ),
        (
            JobInfo(status=JobStatus.FAILED, entrypoint="", driver_exit_code=2),
            End(code=2, why="the driver ended with exit code 2"),
        ),
        (
            JobInfo(
                status=JobStatus.FAILED,
                entrypoint="",
                driver_exit_code=137,
                message="Job entrypoint command failed with exit code 137, last available logs (cut):\nx",
            ),
            End(code=None, why="Job entrypoint command failed with exit code 137"),
        ),
        (JobInfo(status=JobStatus.FAILED, entrypoint=""), End(code=None, why="Job failed.")),
    ],
)
def test_only_an_exit_code_of_ours_is_a_drivers_own_word(job: JobInfo, end: End | None) -> None:
    assert end_of(job) == end


class Client:
    """Answers what it is told to, the next thing each time."""

    def __init__(self, *answers: JobInfo | Exception) -> None:
        self._answers = list(answers)

    def get_job_info(self, _name: str) -> JobInfo:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_server_that_does_not_answer_hides_its_job_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.launch.job_server._ASK_EVERY_S", 0.0)
    running = JobInfo(status=JobStatus.RUNNING, entrypoint="")
    away = ConnectionError("refused")
    job = Job(Client(running, away, away, running, RuntimeError("job 'j' does not exist")), "j")
    seen = []
    for _ in range(4):
        assert job.end() is None
        seen.append(job.unseen_s())
    assert seen[0] == seen[3] == 0.0 < seen[1] < seen[2]
    assert job.end() == End(code=None, why="the cluster has forgotten job j")
