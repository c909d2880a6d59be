"""A training under ``--keep`` whose fault comes at the worst moment, or together with another one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.hosts import Host, Lan, hosts_on, wait_until, why_not
from tests.hosts_tier import memory
from tests.hosts_tier.clusters import Cluster, DistantTraining, Training, start_objects
from tests.hosts_tier.faults import a_host_loses_power, driver_of, raylet_on, the_head_loses_power
from tests.hosts_tier.stories import END_S, MORE, RECOVERY_S, SPEC, START_S, assert_as_left_alone, gets_on
from tests.hosts_tier.test_lost_store import STORE, Outage, falls_silent, returns, stands_still
from tests.live.command_line import write_spec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
AWAY_S = 30.0
# Of a process that has all but none of its memory left.
LAST_S = 60.0


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    with hosts_on(tmp_path / "hosts") as found:
        yield found


def test_a_kept_run_whose_head_loses_power_in_the_middle_of_a_save_is_the_run_that_was_left_alone(
    lan: Lan, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    cluster = Cluster(lan=lan)
    cluster.start(num_workers=2)
    keep = ["--keep", "--address", cluster.job_server]
    training = Training(cluster, spec, tmp_path / "store", *keep, place=lan.host("desk"))
    training.wait_for_step(MORE, START_S)
    before = training.attempt()
    in_a_save(tmp_path / "store")
    the_head_loses_power(cluster)
    gets_on(training, before)
    training.stop(END_S)
    assert training.log().count("submitted as job") >= 2, training.says()
    assert_as_left_alone(training, spec, tmp_path / "alone")


def in_a_save(store: Path) -> None:
    """Returns in the middle of one: a share of it is there, and no manifest."""
    seen = {one.name for one in (store / "runs/r/gen").iterdir()}
    end = time.monotonic() + RECOVERY_S
    while time.monotonic() < end:
        for folder in (store / "runs/r/gen").iterdir():
            if folder.name not in seen and not (folder / "manifest.json").exists():
                return
            seen.add(folder.name)
    raise TimeoutError("no save was met that was going on")


@pytest.mark.parametrize("outage", [falls_silent, stands_still])
def test_a_kept_run_whose_store_is_away_while_a_host_dies_is_the_run_that_was_left_alone(
    outage: Outage, lan: Lan, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    objects, keys = start_objects(lan)
    cluster = Cluster(lan=lan, keys=keys, has_dashboard=False)
    cluster.start(num_workers=2)
    training = DistantTraining(cluster, spec, STORE, "--keep")
    training.wait_for_step(MORE, START_S)
    cluster.add("spare")
    before = training.attempt()
    outage(objects)
    a_host_loses_power(cluster)
    time.sleep(AWAY_S)
    returns(objects)
    gets_on(training, before)
    training.stop(END_S)
    as_left_alone(training, spec, tmp_path)


def test_a_kept_run_whose_keys_expire_in_the_middle_of_an_upload_goes_on_and_saves_again(
    lan: Lan, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    objects, keys = start_objects(lan)
    cluster = Cluster(lan=lan, keys=keys, has_dashboard=False)
    cluster.start(num_workers=2)
    training = DistantTraining(cluster, spec, STORE, "--keep")
    training.wait_for_step(MORE, START_S)
    expires(objects, AWAY_S)
    training.wait_until(lambda: num_refused(objects) > 0, RECOVERY_S, "keys that have expired")
    training.wait_until(lambda: "ExpiredToken" in training.log(), RECOVERY_S, "a word of it")
    training.wait_for_step(max(training.failed_saves()) + 1, RECOVERY_S)
    training.stop(END_S)
    assert training.attempt() == 1, training.says()
    as_left_alone(training, spec, tmp_path)


def expires(objects: Host, for_s: float) -> None:
    (objects.folder / "expiry").write_text(str(for_s))


def num_refused(objects: Host) -> int:
    file = objects.folder / "expiry.refused"
    return int(file.read_text()) if file.exists() else 0


def raylet_of(cluster: Cluster) -> psutil.Process:
    """Of a host that trains."""
    return raylet_on(cluster.training_workers()[0][0])


@pytest.mark.skipif(memory.why_not() is not None, reason=str(memory.why_not()))
@pytest.mark.parametrize("victim", [driver_of, raylet_of])
def test_a_kept_run_whose_driver_or_raylet_is_ended_for_want_of_memory_is_the_run_that_was_left_alone(
    victim: Callable[[Cluster], psutil.Process], lan: Lan, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, SPEC)
    cluster = Cluster(lan=lan, has_dashboard=False)
    cluster.start(num_workers=2)
    training = Training(cluster, spec, tmp_path / "store", "--keep")
    training.wait_for_step(MORE, START_S)
    before, process = training.attempt(), victim(cluster)
    with memory.without_memory(process):
        wait_until(lambda: not process.is_running(), LAST_S, "the process that has no memory")
    gets_on(training, before)
    training.stop(END_S)
    assert_as_left_alone(training, spec, tmp_path / "alone")


def as_left_alone(training: DistantTraining, spec: Path, folder: Path) -> None:
    training.copy_to(folder / "copy")
    training.store = folder / "copy"
    assert_as_left_alone(training, spec, folder / "alone")
