"""What we change about Ray's patience: said in one place, and the same in every file that starts a head."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.local_ray.timeouts import ACROSS_HOSTS, IN_TRAIN, ON_ONE_MACHINE, in_train, where_unset

ROOT = Path(__file__).parents[3]
# The 62.7 s that a host's silence was seen to cost with them are these.
RAYS_OWN = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "3000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
}


def assignments(words: list[str]) -> dict[str, str]:
    """Those of Ray's health checks; a shell's words may carry its semicolons."""
    found = (word.rstrip(";").partition("=") for word in words if word.startswith("RAY_health_check"))
    return {name: value for name, _, value in found}


def in_the_launcher() -> dict[str, str]:
    commands = yaml.safe_load((ROOT / "cluster.yaml").read_text())["head_start_ray_commands"]
    (start,) = (command for command in commands if "ray start --head" in command)
    return assignments(shlex.split(start))


def in_the_unit() -> dict[str, str]:
    unit = (ROOT / "cluster/longhaul-head.service").read_text()
    lines = re.findall(r"^Environment=(.*)$", unit, flags=re.MULTILINE)
    return assignments([word for line in lines for word in shlex.split(line)])


def in_a_manifest(name: str) -> dict[str, str]:
    spec: dict[str, Any] = yaml.safe_load((ROOT / f"cluster/kuberay/{name}.yaml").read_text())["spec"]
    (container,) = spec.get("rayClusterSpec", spec)["headGroupSpec"]["template"]["spec"]["containers"]
    return assignments([f"{variable['name']}={variable.get('value')}" for variable in container["env"]])


def in_the_runbook() -> dict[str, str]:
    runbook = (ROOT / "docs/operations.md").read_text()
    return dict(re.findall(r"^\| `(RAY_\w+)` \| [^|]+ \| `([^`]+)` \|", runbook, flags=re.MULTILINE))


@pytest.mark.parametrize(
    "found",
    [in_the_launcher(), in_the_unit(), in_a_manifest("raycluster"), in_a_manifest("rayjob")],
    ids=["cluster.yaml", "unit", "raycluster", "rayjob"],
)
def test_every_file_that_starts_a_head_sets_what_is_said_in_one_place(found: dict[str, str]) -> None:
    assert found == ACROSS_HOSTS


def test_the_runbook_says_all_of_it_for_clusters_that_we_do_not_start() -> None:
    by_spec = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "limits.schedule_timeout_s"}
    assert in_the_runbook() == ACROSS_HOSTS | IN_TRAIN | by_spec


def silence_noticed_after_s(settings: Mapping[str, str]) -> float:
    """At the most, once the node has been up for the initial delay."""
    period_ms = int(settings["RAY_health_check_period_ms"])
    timeout_ms = int(settings["RAY_health_check_timeout_ms"])
    return int(settings["RAY_health_check_failure_threshold"]) * (period_ms + timeout_ms) / 1000


def test_a_silent_host_is_noticed_in_seconds_and_a_busy_machine_is_given_longer() -> None:
    assert silence_noticed_after_s(RAYS_OWN) == 65
    assert silence_noticed_after_s(ACROSS_HOSTS) == 4.5
    assert silence_noticed_after_s(ACROSS_HOSTS) < silence_noticed_after_s(ON_ONE_MACHINE) < 20
    assert ON_ONE_MACHINE.keys() == ACROSS_HOSTS.keys() == RAYS_OWN.keys()


def test_what_the_user_has_set_stays() -> None:
    own = {"RAY_health_check_timeout_ms": "2000", "PATH": "/bin"}
    assert where_unset(ON_ONE_MACHINE, own) == ON_ONE_MACHINE | {"RAY_health_check_timeout_ms": "2000"}


@pytest.mark.parametrize(
    ("world_size", "interval_s"), [(1, "0.25"), (256, "0.25"), (1024, "1"), (16_384, "16")]
)
def test_a_controller_asks_at_most_1024_workers_a_second(world_size: int, interval_s: str) -> None:
    assert in_train(world_size) == {**IN_TRAIN, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": interval_s}
