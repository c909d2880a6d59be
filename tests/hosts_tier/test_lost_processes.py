"""A training on hosts of which a process dies that is no worker: its controller, its job, or Ray's head."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.execution.causes import LOST_CONTROLLER
from tests.hosts import Lan, hosts_on, why_not
from tests.hosts_tier.clusters import Cluster, Training
from tests.hosts_tier.faults import (
    Fault,
    the_controller_is_killed,
    the_driver_is_killed,
    the_head_loses_power,
    the_heads_ray_is_killed,
    the_job_supervisor_is_killed,
)
from tests.hosts_tier.stories import END_S, MORE, SPEC, START_S, assert_as_left_alone, goes_on
from tests.live.command_line import write_spec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    with hosts_on(tmp_path / "hosts") as found:
        yield found


def test_a_run_whose_controller_is_killed_goes_on_under_the_same_driver(lan: Lan, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SPEC)
    cluster = Cluster(lan=lan, has_dashboard=False)
    cluster.start(num_workers=2)
    training = Training(cluster, spec, tmp_path / "store")
    training.wait_for_step(MORE, START_S)
    goes_on(cluster, training, the_controller_is_killed)
    goes_on(cluster, training, the_controller_is_killed)
    training.stop(END_S)
    assert training.attempt() == 3
    assert training.log().count(f"failed: {LOST_CONTROLLER}; trying again in 0 s") == 2
    assert_as_left_alone(training, spec, tmp_path / "alone")


@pytest.mark.parametrize(
    "fault",
    [
        the_driver_is_killed,
        the_job_supervisor_is_killed,
        the_heads_ray_is_killed,
        the_head_loses_power,
    ],
)
def test_a_job_that_dies_is_submitted_again_by_its_supervisor_on_another_host(
    fault: Fault, lan: Lan, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    cluster = Cluster(lan=lan)
    cluster.start(num_workers=2)
    keep = ["--keep", "--address", cluster.job_server]
    training = Training(cluster, spec, tmp_path / "store", *keep, place=lan.host("desk"))
    training.wait_for_step(MORE, START_S)
    goes_on(cluster, training, fault)
    training.stop(END_S)
    assert training.log().count("submitted as job") >= 2
    assert_as_left_alone(training, spec, tmp_path / "alone")
