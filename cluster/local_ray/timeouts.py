"""How soon Ray notices that something is gone: our settings wherever Ray is started. Pure.

``ACROSS_HOSTS`` is repeated in ``cluster.yaml``, the head's unit and the manifests for KubeRay.
``docs/operations.md`` gives it for clusters that others start. A test keeps them all equal.
"""

from collections.abc import Mapping

# For the head's processes, which ask each node whether it is alive. By default Ray gives a silent host 65
# s.
ACROSS_HOSTS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

# No link can fail on one machine, but tests and other programs may delay a node for seconds. The node must
# not be declared dead for that. A killed node is noticed just as soon, since nothing accepts the request.
ON_ONE_MACHINE = {**ACROSS_HOSTS, "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000"}

# For each driver that calls Ray Train, which hands them on to its controller and its workers.
IN_TRAIN = {
    # Ray Train finds a dead worker by polling.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    # A second safeguard behind our own deadlines for progress: a stopped process does not even answer.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    # Ray's own barriers in its reports have no other time limit.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",
}

# Ray Train's controller asks each worker in turn, which costs it half a millisecond. With an interval that
# many ranks outgrow, it would do nothing else.
_RANKS_ASKED_PER_S = 1024


def asked_every_s(world_size: int) -> float:
    """Seconds between two rounds of Ray Train's controller: of more than 256 ranks it asks more seldom."""
    return max(float(IN_TRAIN["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"]), world_size / _RANKS_ASKED_PER_S)


def in_train(world_size: int) -> dict[str, str]:
    """Returns ``IN_TRAIN`` for so many ranks."""
    return {**IN_TRAIN, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": f"{asked_every_s(world_size):g}"}


def where_unset(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns ``settings``, in which values that the user has already set win."""
    return {name: environment.get(name, value) for name, value in settings.items()}
