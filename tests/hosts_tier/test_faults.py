"""A real ``longhaul train`` over several hosts, to which everything happens that happens to hosts.

Whatever happened, the state is bit by bit the one of a run that was left alone.
"""

from pathlib import Path

import pytest

from tests.hosts import Host, hosts_on, why_not
from tests.hosts_tier.clusters import Cluster, Training, wait_until_started
from tests.hosts_tier.faults import (
    a_host_falls_silent,
    a_host_is_drained,
    a_host_loses_power,
    a_worker_dies_on,
    a_worker_process_is_killed,
    the_controller_is_killed,
    the_driver_is_killed,
)
from tests.hosts_tier.stories import END_S, MORE, SPEC, START_S, assert_as_left_alone, goes_on, heals
from tests.live.command_line import write_spec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.longest,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def test_a_run_to_which_one_thing_after_the_other_happens_is_the_run_that_was_left_alone(
    tmp_path: Path,
) -> None:
    """A host that was silent comes back while something else happens, one that is drained does not; one on
    which workers keep dying is left out.
    """
    spec, store = write_spec(tmp_path, SPEC), tmp_path / "store"
    with hosts_on(tmp_path / "hosts") as lan:
        cluster = Cluster(lan=lan, has_dashboard=False)
        cluster.start(num_workers=5)
        training = Training(cluster, spec, store, "--keep")
        training.wait_for_step(MORE, START_S)
        silent = goes_on(cluster, training, a_host_falls_silent)
        assert silent is not None
        heals(silent)
        culprits: list[Host] = []
        # The next attempt may come to another host.
        while not (again := [host for host, _ in cluster.training_workers() if host in culprits]):
            culprits.append(cluster.training_workers()[0][0])
            goes_on(cluster, training, a_worker_process_is_killed)
        goes_on(cluster, training, a_worker_dies_on(again[0]))
        goes_on(cluster, training, the_controller_is_killed)
        goes_on(cluster, training, a_host_is_drained)
        goes_on(cluster, training, the_driver_is_killed)
        wait_until_started(silent, times=2)
        goes_on(cluster, training, a_host_loses_power)
        training.stop(END_S)
    assert_as_left_alone(training, spec, tmp_path / "alone")
