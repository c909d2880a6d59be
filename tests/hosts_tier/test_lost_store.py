"""A training whose object storage is away: it goes on, what is at risk grows, and it says how it ended."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.hosts import Host, hosts_on, why_not
from tests.hosts_tier.clusters import Cluster, DistantTraining, start_objects
from tests.hosts_tier.stories import END_S, MORE, RECOVERY_S, SPEC, START_S
from tests.live.command_line import write_spec
from tests.live.servers import BUCKET

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.longest,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
STORE = f"s3://{BUCKET}/store"
# Whatever is on its way then may take the store's whole patience until it is given up.
LAST_END_S = 900.0

# What happens to a host that stores objects.
Outage = Callable[[Host], None]


def falls_silent(objects: Host) -> None:
    objects.cut()


def stands_still(objects: Host) -> None:
    """It takes connections, and never answers."""
    _signal(objects, signal.SIGSTOP)


def ends(objects: Host) -> None:
    """It refuses connections. What it held in its memory is gone."""
    _signal(objects, signal.SIGKILL)


def returns(objects: Host) -> None:
    _signal(objects, signal.SIGCONT)
    objects.heal()


def _signal(objects: Host, number: signal.Signals) -> None:
    for process in objects.processes("run_simple"):
        process.send_signal(number)


def _in_soak(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[tuple[Host, Cluster]]:
    with hosts_on(tmp_path / "hosts") as lan:
        host, keys = start_objects(lan)
        cluster = Cluster(lan=lan, keys=keys, has_dashboard=False)
        cluster.start(num_workers=2)
        yield host, cluster


@pytest.mark.parametrize(
    ("outage", "for_s"),
    [
        (falls_silent, 30),
        _in_soak(stands_still, 30),
        _in_soak(falls_silent, 300),
        _in_soak(stands_still, 300),
    ],
)
def test_a_store_that_is_away_for_a_while_stops_no_training(
    outage: Outage, for_s: float, objects: tuple[Host, Cluster], tmp_path: Path
) -> None:
    host, cluster = objects
    training = DistantTraining(cluster, write_spec(tmp_path, SPEC), STORE)
    training.wait_for_step(MORE, START_S)
    outage(host)
    sleep(for_s)
    done = training.steps_done()
    assert done - training.newest_step() > MORE, training.says()
    returns(host)
    training.wait_for_step(done, RECOVERY_S)
    training.stop(END_S)
    assert training.attempt() == 1


@pytest.mark.soak
def test_a_host_whose_link_to_the_store_is_slow_is_named_and_one_whose_link_is_mended_no_longer(
    objects: tuple[Host, Cluster], tmp_path: Path
) -> None:
    host, cluster = objects
    patient = ["--set", "checkpoint.deadline_s=120", "--set", "alarms.min_interval_s=0"]
    training = DistantTraining(cluster, write_spec(tmp_path, SPEC), STORE, *patient)
    training.wait_for_step(5 * MORE, START_S)
    assert "slow link" not in training.log(), training.says()
    slow, _ = cluster.workers
    slow.send_slowly("4mbit", host)
    named = f"r: alarm: slow link: {slow.address} uploads at "
    training.wait_until(lambda: named in training.log(), RECOVERY_S, "the slow host's name")
    slow.send_freely()
    training.wait_until(lambda: "alarm: slow link: over" in training.log(), RECOVERY_S, "its end")
    training.stop(END_S)
    assert training.attempt() == 1, training.says()


@pytest.mark.soak
@pytest.mark.parametrize("outage", [ends, falls_silent, stands_still])
@pytest.mark.parametrize("end", ["asked to", "all done"])
def test_a_run_whose_store_never_returns_says_what_is_not_durable_and_fails(
    end: str, outage: Outage, objects: tuple[Host, Cluster], tmp_path: Path
) -> None:
    host, cluster = objects
    last = ["--set", "steps=300"] if end == "all done" else []
    training = DistantTraining(cluster, write_spec(tmp_path, SPEC), STORE, *last)
    training.wait_for_step(MORE, START_S)
    outage(host)
    durable = training.newest_step()
    training.wait_until(
        lambda: training.steps_done() > durable + 2 * MORE, RECOVERY_S, "steps without a store"
    )
    if end == "asked to":
        training.ask_to_stop()
    assert training.end(LAST_END_S) == 1
    *_, last_line = training.log().splitlines()
    assert "could not be saved to the store" in last_line, training.says()
    assert "running it again goes on" in last_line
    if outage is not ends:
        returns(host)
        again = DistantTraining(cluster, training.spec, STORE)
        again.wait_for_step(durable + 2 * MORE, START_S)
        again.stop(END_S)
