"""A training that loses a host and has none to spare: it waits, goes on smaller, or gives up and says why."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest

from tests.hosts import Host, hosts_on, why_not
from tests.hosts_tier.clusters import GROUP, Cluster, Training
from tests.hosts_tier.faults import Fault, a_host_falls_silent, a_host_is_drained, a_host_loses_power
from tests.hosts_tier.stories import (
    END_S,
    MORE,
    RECOVERY_S,
    SPEC,
    START_S,
    assert_as_left_alone,
    assert_losses_as_left_alone,
    gets_on,
    goes_on,
)
from tests.live.attempts import newest_manifest
from tests.live.command_line import write_spec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
SPARE_LATE_S = 20.0
IMPATIENT = ["--set", "recovery={patience_s: 20, pause_s: 0.2}", "--set", "limits.schedule_timeout_s=5"]
ELASTIC = ["--set", "world_size={min: 1, max: 2}", "--set", "elastic={wait_for_spare_s: 5, grow_after_s: 2}"]

UNREACHED = """
import sys
from jobs.launch.ray_executor import RayExecutor
with RayExecutor(verbose=False, share_nodes=True) as executor:
    group = executor.inventory().group(sys.argv[1])
    found = executor.unreached(group, sys.argv[2:])
    print(None if found is None else {tuple(sorted(pair)) for pair in found})
"""

# How there are two hosts again after one was struck.
Rest = Callable[[Cluster, Host], None]


def another_comes(cluster: Cluster, struck: Host) -> None:
    struck.power_off()
    cluster.add("spare")


def it_comes_back(_cluster: Cluster, struck: Host) -> None:
    struck.heal()


CASES = pytest.mark.parametrize(
    ("fault", "rest"),
    [
        (a_host_loses_power, another_comes),
        (a_host_falls_silent, another_comes),
        (a_host_falls_silent, it_comes_back),
        (a_host_is_drained, another_comes),
    ],
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with hosts_on(tmp_path / "hosts") as lan:
        found = Cluster(lan=lan, has_dashboard=False)
        found.start(num_workers=2)
        yield found


@CASES
def test_a_run_without_a_spare_waits_until_there_is_a_host_again(
    fault: Fault, rest: Rest, cluster: Cluster, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    training = Training(cluster, spec, tmp_path / "store")
    training.wait_for_step(MORE, START_S)
    before = training.attempt()
    struck = fault(cluster)
    assert struck is not None
    sleep(SPARE_LATE_S)
    rest(cluster, struck)
    gets_on(training, before)
    training.stop(END_S)
    assert_as_left_alone(training, spec, tmp_path / "alone")


@CASES
def test_a_run_of_any_size_goes_on_smaller_and_grows_when_there_is_a_host_again(
    fault: Fault, rest: Rest, cluster: Cluster, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    training = Training(cluster, spec, tmp_path / "store", *ELASTIC)
    training.wait_for_step(MORE, START_S)
    struck = goes_on(cluster, training, fault, num_ranks=1)
    assert struck is not None
    before = training.attempt()
    rest(cluster, struck)
    gets_on(training, before)
    assert newest_manifest(tmp_path / "store", "r").cut.world_size == 2
    training.stop(END_S)
    assert_losses_as_left_alone(training, spec, tmp_path / "alone")


def test_a_host_on_which_workers_keep_dying_is_left_out_as_soon_as_there_is_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    training = Training(cluster, write_spec(tmp_path, SPEC), tmp_path / "store")
    training.wait_for_step(MORE, START_S)
    culprit, first = cluster.training_workers()[0]
    (other,) = (host for host in cluster.workers if host is not culprit)
    before = training.attempt()
    first.kill()
    gets_on(training, before)
    spare = cluster.add("spare")
    (second,) = (process for host, process in cluster.training_workers() if host is culprit)
    before = training.attempt()
    second.kill()
    gets_on(training, before)
    assert {host for host, _ in cluster.training_workers()} == {other, spare}
    assert re.search(r"attempt 2 failed: .*, without \S+$", training.log(), re.MULTILINE), training.says()
    training.stop(END_S)


def test_of_two_hosts_that_no_longer_reach_each_other_one_is_left_out_at_once_where_there_is_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    training = Training(cluster, spec, tmp_path / "store")
    training.wait_for_step(MORE, START_S)
    one, other = cluster.workers
    spare = cluster.add("spare")
    before = training.attempt()
    one.part_from(other)
    training.wait_until(lambda: "does not reach" in training.log(), RECOVERY_S, "who does not reach whom")
    gets_on(training, before)
    assert training.attempt() == before + 1, training.says()
    hosts = {host for host, _ in cluster.training_workers()}
    assert spare in hosts and not {one, other} <= hosts, training.says()
    # First where they stood still. Both ways are broken, since no answer returns.
    hang = r"no step for 30 s; .*; rank 0 on worker-\d does not reach rank 1 on worker-\d; rank 1 on .*$"
    assert re.search(hang, training.log(), re.MULTILINE), training.says()
    training.stop(END_S)
    assert_as_left_alone(training, spec, tmp_path / "alone")


def test_the_driver_sees_which_nodes_do_not_reach_each_other_and_when_they_do_again(cluster: Cluster) -> None:
    one, other = cluster.workers
    assert unreached(cluster, one.address, other.address) == "set()"
    one.part_from(other)
    both = sorted((one.address, other.address))
    assert unreached(cluster, one.address, other.address) == str({tuple(both)})
    one.rejoin(other)
    assert unreached(cluster, one.address, other.address) == "set()"
    other.cut()
    assert unreached(cluster, one.address, other.address) == "None"


def unreached(cluster: Cluster, *nodes: str) -> str:
    """What a driver on the head finds."""
    told = cluster.head.run(
        [sys.executable, "-c", UNREACHED, GROUP, *nodes],
        deadline_s=RECOVERY_S,
        **cluster.driver_environment,
    )
    return told.splitlines()[-1]


@pytest.mark.parametrize("fault", [a_host_loses_power, a_host_falls_silent])
def test_a_run_that_no_host_comes_for_gives_up_when_it_has_waited_long_enough_and_goes_on_later(
    fault: Fault, cluster: Cluster, tmp_path: Path
) -> None:
    spec, store = write_spec(tmp_path, SPEC), tmp_path / "store"
    training = Training(cluster, spec, store, *IMPATIENT)
    training.wait_for_step(MORE, START_S)
    before = training.newest_step()
    struck = fault(cluster)
    assert struck is not None
    assert training.end(RECOVERY_S) == 1
    assert "failed: not placed within 5 s: asked hosts for 2 x" in training.log()
    assert "longhaul train: given up, there was no room for" in training.log().splitlines()[-1]
    assert training.newest_step() >= before
    another_comes(cluster, struck)
    again = Training(cluster, spec, store, *IMPATIENT)
    gets_on(again, training.attempt())
    again.stop(END_S)
    assert_as_left_alone(again, spec, tmp_path / "alone")


def test_the_ranks_of_a_host_that_loses_power_get_their_state_from_another_ones_memory(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec = write_spec(
        tmp_path, SPEC.replace("every_steps: 20,", "every_steps: 100, memory: {every_steps: 5},")
    )
    training = Training(cluster, spec, tmp_path / "store")
    training.wait_for_step(MORE, START_S)
    cluster.add("spare")
    goes_on(cluster, training, a_host_loses_power)
    log = training.log()
    # The store may just have got the newest one too.
    assert re.search(r"chosen, (in the hosts' memory alone|from the hosts' memory)$", log, re.MULTILINE), log
    training.stop(END_S)
    assert_as_left_alone(training, spec, tmp_path / "alone")
