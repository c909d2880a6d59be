"""What a keeper makes of how a Ray job ended."""

import pytest
from ray.job_submission import JobInfo, JobStatus

from jobs.drivers import End
from jobs.launch.job_server import end_of


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
