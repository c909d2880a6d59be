"""The variables that each vendor's workers need before torch loads."""

from collections.abc import Mapping

from cluster.inventory import WorkerGroup

# One thread per worker: on the vendor ``cpu`` a device is one core, so that two workers
# on two cores are compared with one worker on one.
_CPU = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}

# Ray hides devices from the raylet's children by HIP_VISIBLE_DEVICES but shares only the CUDA list among
# the workers of a node; left unset, every worker sees the whole node and takes its local rank's device.
_AMD = {"RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"}


def worker_environment(group: WorkerGroup, overrides: Mapping[str, str]) -> dict[str, str]:
    """The group's variables; what the spec overrides wins."""
    if group.vendor == "cpu" or group.simulated:
        base = _CPU
    elif group.vendor == "amd":
        base = _AMD
    else:
        base = {}
    return {**base, **overrides}
