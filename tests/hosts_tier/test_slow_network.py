"""A training on three hosts, of which one sends slowly to the others: it is named, and no host before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import hosts_on, why_not
from tests.hosts_tier.clusters import LONGHAUL, Cluster, Training
from tests.hosts_tier.stories import END_S, MORE, RECOVERY_S, SPEC, START_S
from tests.live.command_line import write_spec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.soak,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
# What tries a host's links.
END = "LinkEnd"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with hosts_on(tmp_path / "hosts") as lan:
        found = Cluster(lan=lan, has_dashboard=False)
        found.start(num_workers=3)
        yield found


def test_a_host_that_sends_slowly_to_the_others_is_named_and_no_longer_once_its_link_is_mended(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = [
        "--set",
        "world_size=3",
        "--set",
        "alarms.min_interval_s=0",
        "--set",
        "checkpoint.every_steps=100",
    ]
    training = Training(cluster, write_spec(tmp_path, SPEC), tmp_path / "store", *flags)
    training.wait_for_step(MORE, START_S)
    slow, *others = cluster.workers
    for is_there in (True, False):
        training.wait_until(
            lambda: bool(slow.processes(END)) is is_there,  # noqa: B023  # It is called at once.
            RECOVERY_S,
            f"a look at the links, which is there: {is_there}",
        )
    assert "slow network" not in training.log(), training.says()
    slow.send_slowly("16mbit", *others)
    named = f"r: alarm: slow network: {slow.address} sends to other hosts at "
    training.wait_until(lambda: named in training.log(), RECOVERY_S, "the slow host's name")
    status = [*LONGHAUL, "status", "r", "--store", str(training.store)]
    assert f"slow network: {slow.address} sends to" in cluster.head.run(status, deadline_s=END_S)
    slow.send_freely()
    training.wait_until(lambda: "alarm: slow network: over" in training.log(), RECOVERY_S, "its end")
    training.stop(END_S)
    assert training.attempt() == 1, training.says()
    for host in cluster.workers:
        assert not host.processes(END)
