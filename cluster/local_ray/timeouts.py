"""How soon Ray notices that something is gone: what we set wherever Ray is started. Pure.

``ACROSS_HOSTS`` stands again in ``cluster.yaml``, the head's unit and the manifests for KubeRay, and
``docs/operations.md`` says it for clusters that somebody else starts; a test holds them all to it.
"""

from collections.abc import Mapping

# Of the head's processes, which ask each node whether it is there. Left alone, Ray gives a silent host 65 s.
ACROSS_HOSTS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

# No link can go down here, but tests and neighbours may hold a node up for seconds: it is not to be called
# dead for that. One that was killed is noticed just as soon, since nobody takes the question.
ON_ONE_MACHINE = {**ACROSS_HOSTS, "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000"}

# Of each driver that calls Ray Train, which hands them on to its controller and its workers.
IN_TRAIN = {
    # A worker that died is found by asking.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    # A second net behind our own deadlines for progress: a process that is stopped does not even answer.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    # Ray's own barriers, in its reports, never end by themselves.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",
}


def where_unset(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Those that the user has not set to something else."""
    return {name: environment.get(name, value) for name, value in settings.items()}
