"""What is made of failures that no rank could tell of: Ray's own errors, without a Ray."""

import errno

import pytest
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError

from cluster.inventory import WorkerGroup
from jobs.execution.outcomes import Failed
from jobs.execution.resources import Claim
from jobs.launch.ray_train import attempts
from jobs.launch.ray_train.attempts import Seat, attempt
from jobs.launch.ray_train.driver_actors import Backstage
from jobs.launch.ray_train.ray_errors import is_lost_at_start
from tests.unit.recovery.test_notifier import task_in


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (WorkerGroupStartupFailedError("At least one of the worker actors failed to initialize."), True),
        (RayActorError(), True),
        (
            WorkerGroupStartupFailedError("The actor died because of an error raised in its creation task"),
            False,
        ),
        (WorkerGroupStartupTimeoutError(2), False),
        (ValueError("of ours"), False),
    ],
)
def test_a_worker_that_dies_while_it_is_set_up_is_a_lost_one(error: Exception, is_lost: bool) -> None:
    assert is_lost_at_start(error) is is_lost


def test_a_driver_whose_disk_is_full_waits_as_for_a_cluster_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/ray")

    monkeypatch.setattr(attempts, "scratch", full)
    claim = Claim(num_workers=1, resources={"CPU": 1.0}, selector={}, strategy="PACK")
    group = WorkerGroup(name="local", vendor="cpu", nodes=())
    seat = Seat(group=group, claim=claim, schedule_timeout_s=1, collective_timeout_s=1, hang_timeout_s=1)
    outcome = attempt(task_in("/nowhere"), seat, Backstage(), lambda _: None, lambda: None)
    assert isinstance(outcome, Failed)
    assert outcome.cause == "cluster away"
    assert "No space left on device" in outcome.reason
