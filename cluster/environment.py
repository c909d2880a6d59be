"""The environment variables that each vendor's workers need before torch loads. Pure.

A spec's ``overrides.<group>.environment`` wins over all of them. The AMD part follows the sources of Ray
and RCCL and has not run on a device.
"""

from collections.abc import Mapping

from cluster.inventory import ClusterError, WorkerGroup

# Label on every node of a group whose traffic must use one network interface; its value is a name such as
# `eth0`.
INTERFACE_LABEL = "longhaul.interface"

# One thread per worker: on the vendor ``cpu`` a device is one core, so two workers on two cores can be
# compared with one worker on one.
_CPU = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}

# With ``deterministic``: what libraries read as they first touch a device. Without a work space per stream
# torch refuses cuBLAS's products. NCCL's reductions in switches (NVLS) have no fixed order; a ring of one
# protocol has one. Megatron-LM's deterministic mode asks for such an algorithm too. RCCL reads these as well,
# and has algorithms of its own besides (MSCCL).
DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    # It would choose among libraries' products by how long each took.
    "PYTORCH_TUNABLEOP_ENABLED": "0",
}
_DETERMINISTIC_AMD = {"RCCL_MSCCL_ENABLE": "0", "RCCL_MSCCLPP_ENABLE": "0"}

# By default CUDA orders devices by speed. Ray and NVML number them along the bus, and the lists hold their
# numbers.
_NVIDIA = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

_AMD = {
    # Ray hides devices from the raylet's children by HIP_VISIBLE_DEVICES, but shares only the CUDA list
    # among the workers of a node. With this setting HIP's variable stays unset: every worker sees the whole
    # node and takes its local rank's device.
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    # Without it RCCL aborts on MI300 if the runtime still reclaims scratch memory.
    "HSA_NO_SCRATCH_RECLAIM": "1",
}

_DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

# These are read before a worker's first line: by the loader, the C library, Python, and Ray, which changes
# some.
_READ_AT_START = (
    *("LD_", "GLIBC_", "MALLOC_", "RES_OPTIONS", "PYTHON"),
    *("RAY_EXPERIMENTAL_NOSET_", "OMP_NUM_THREADS"),
    *_DEVICE_LISTS,
)


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that must be set when a process starts.

    They go through Ray's ``runtime_env``, which Ray writes unchanged into its logs. All other variables may
    be secrets and must not go that way.
    """
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START)}


def worker_environment(
    group: WorkerGroup, overrides: Mapping[str, str], *, deterministic: bool = False
) -> dict[str, str]:
    """Returns the variables of a benchmark's worker, which gets one thread on CPUs."""
    threads = _CPU if is_on_cpus(group) else {}
    return {**threads, **long_run_environment(group, overrides, deterministic=deterministic)}


def long_run_environment(
    group: WorkerGroup, overrides: Mapping[str, str], *, deterministic: bool = False
) -> dict[str, str]:
    """Returns what any worker needs to find its device and its peers.

    On CPUs a long run keeps the number of threads that it finds, because no result compares it with fewer
    workers.
    """
    return {**_devices_and_network(group), **(_repeating(group) if deterministic else {}), **overrides}


def _devices_and_network(group: WorkerGroup) -> dict[str, str]:
    if is_on_cpus(group):
        return _interface(group, "GLOO_SOCKET_IFNAME")
    # RCCL reads NCCL's variables.
    network = _interface(group, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {**(_AMD if group.vendor == "amd" else _NVIDIA), **network}


def visible_devices(group_vendor: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns what to change in a worker before it touches a device, so that it sees all devices of Train's
    workers on its node.

    Train announces them only in CUDA's variable. AMD's runtime prefers its own variable, in which Ray may
    have left only this worker's device.
    """
    shared = variables.get("CUDA_VISIBLE_DEVICES")
    return {"HIP_VISIBLE_DEVICES": shared} if group_vendor == "amd" and shared else {}


def without_device_lists(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a process that touches no device, but starts others that do.

    Ray gives an empty list to an actor without devices. What reads a list as it loads would keep it.
    """
    return {name: value for name, value in variables.items() if name not in _DEVICE_LISTS}


def _repeating(group: WorkerGroup) -> dict[str, str]:
    """The variables by which libraries compute the same to the bit each time. gloo does, and needs none."""
    if is_on_cpus(group):
        return {}
    return {**DETERMINISTIC, **(_DETERMINISTIC_AMD if group.vendor == "amd" else {})}


def is_on_cpus(group: WorkerGroup) -> bool:
    """Says whether the group's ranks run on CPUs, also where these simulate a vendor's devices."""
    return group.vendor == "cpu" or group.simulated


def _interface(group: WorkerGroup, *names: str) -> dict[str, str]:
    interfaces = sorted({dict(node.labels).get(INTERFACE_LABEL, "") for node in group.nodes})
    if len(interfaces) > 1:
        named = ", ".join(name or "none" for name in interfaces)
        raise ClusterError(
            f"group {group.name!r}: its nodes name several network interfaces in {INTERFACE_LABEL} "
            f"({named}), expected one for all; leave the label out, or set NCCL_SOCKET_IFNAME on each node "
            "yourself"
        )
    return dict.fromkeys(names, interfaces[0]) if interfaces and interfaces[0] else {}
