"""The variables of each vendor's workers, and who may change them."""

from collections.abc import Mapping

import pytest

from cluster.environment import (
    DETERMINISTIC,
    INTERFACE_LABEL,
    long_run_environment,
    read_at_start,
    visible_devices,
    without_device_lists,
    worker_environment,
)
from cluster.inventory import MIXED_LABEL, ClusterError, Node, Vendor, WorkerGroup
from jobs.sweeps.grid import Run
from tests.unit.builders import cells_of, plans_of, sessions_of, sweep

AMD = {"RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1", "HSA_NO_SCRATCH_RECLAIM": "1"}
NVIDIA = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
MSCCL = {"RCCL_MSCCL_ENABLE": "0", "RCCL_MSCCLPP_ENABLE": "0"}
CPU = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def group(
    vendor: Vendor, *labels: Mapping[str, str], name: str = "local", simulated: bool = False
) -> WorkerGroup:
    """A node for each of ``labels``, or one without."""
    nodes = tuple(
        Node(node_id=f"node-{number}", num_devices=8, num_cpus=8, labels=tuple(of_node.items()))
        for number, of_node in enumerate(labels or ({},))
    )
    return WorkerGroup(name=name, vendor=vendor, nodes=nodes, simulated=simulated)


@pytest.mark.parametrize(("vendor", "variables"), [("nvidia", NVIDIA), ("amd", AMD), ("cpu", CPU)])
def test_each_vendors_workers_have_its_variables(vendor: Vendor, variables: dict[str, str]) -> None:
    assert worker_environment(group(vendor), {}) == variables


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_workers_of_a_simulated_group_run_on_cpus(vendor: Vendor) -> None:
    assert worker_environment(group(vendor, simulated=True), {}) == CPU
    assert long_run_environment(group(vendor, simulated=True), {}) == {}


def test_a_long_run_on_cpus_takes_the_threads_that_it_finds() -> None:
    assert long_run_environment(group("cpu"), {}) == {}
    assert long_run_environment(group("amd"), {}) == AMD


def test_what_a_spec_says_of_a_group_wins() -> None:
    changed = {"HSA_NO_SCRATCH_RECLAIM": "0", "NCCL_DEBUG": "WARN"}
    assert worker_environment(group("amd"), changed) == {**AMD, **changed}
    assert long_run_environment(group("amd"), changed) == {**AMD, **changed}


def test_a_specs_override_of_a_group_reaches_its_workers_and_no_others() -> None:
    spec = sweep(groups=["red", "blue"], overrides={"red": {"environment": {"NCCL_SOCKET_IFNAME": "ib0"}}})
    groups = {
        "red": group("amd", {INTERFACE_LABEL: "eth0"}, name="red"),
        "blue": group("nvidia", name="blue"),
    }
    runs = [Run(cell=cell, repeat=1, order=order) for order, cell in enumerate(cells_of(spec))]
    found = sessions_of(spec, runs, plans_of(spec, *groups.values()), groups)
    (red, *_), (blue, *_) = found["red"], found["blue"]
    assert red.environment == {**AMD, "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert blue.environment == NVIDIA


@pytest.mark.parametrize(("vendor", "also"), [("nvidia", {}), ("amd", MSCCL)])
def test_what_repeats_to_the_bit_is_told_to_devices_libraries_unless_a_spec_says_otherwise(
    vendor: Vendor, also: dict[str, str]
) -> None:
    usual = long_run_environment(group(vendor), {})
    found = long_run_environment(group(vendor), {"NCCL_PROTO": "LL"}, deterministic=True)
    told = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL",
        "PYTORCH_TUNABLEOP_ENABLED": "0",
    }  # fmt: skip
    assert found == {**usual, **told, **also}
    assert long_run_environment(group(vendor, simulated=True), {}, deterministic=True) == {}
    assert worker_environment(group("cpu"), {}, deterministic=True) == CPU


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_sweeps_workers_are_told_what_its_cells_ask_for(deterministic: bool) -> None:
    spec, there = sweep(deterministic=deterministic), {"local": group("nvidia")}
    runs = [Run(cell=cell, repeat=1, order=order) for order, cell in enumerate(cells_of(spec))]
    (found,) = sessions_of(spec, runs, plans_of(spec, *there.values()), there)["local"]
    assert found.environment == {**NVIDIA, **(DETERMINISTIC if deterministic else {})}


def test_a_job_knows_whether_its_groups_devices_may_differ() -> None:
    groups = {
        "red": group("amd", {MIXED_LABEL: "true"}, name="red"),
        "blue": group("amd", name="blue"),
    }
    spec = sweep(groups=list(groups))
    runs = [Run(cell=cell, repeat=1, order=order) for order, cell in enumerate(cells_of(spec))]
    found = sessions_of(spec, runs, plans_of(spec, *groups.values()), groups)
    assert {name: queue[0].jobs[0].may_mix_devices for name, queue in found.items()} == {
        "red": True,
        "blue": False,
    }


def test_a_group_that_names_its_interface_uses_it_for_all_collectives() -> None:
    named = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    label = {INTERFACE_LABEL: "eth0"}
    assert long_run_environment(group("amd", label, label), {}) == {**AMD, **named}
    assert long_run_environment(group("nvidia", label), {}) == {**NVIDIA, **named}
    assert long_run_environment(group("cpu", label), {}) == {"GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize("other", [{}, {INTERFACE_LABEL: "ens5"}])
def test_nodes_that_name_several_interfaces_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match=r"group 'local': its nodes name several network interfaces"):
        long_run_environment(group("amd", {INTERFACE_LABEL: "eth0"}, other), {})


def test_an_amd_worker_sees_all_devices_that_train_shares() -> None:
    left_by_ray = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "2"}
    assert visible_devices("amd", left_by_ray) == {"HIP_VISIBLE_DEVICES": "0,1,2,3"}


@pytest.mark.parametrize(
    ("vendor", "variables"),
    [("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1"}), ("amd", {}), ("amd", {"CUDA_VISIBLE_DEVICES": ""})],
)
def test_where_nothing_is_shared_nothing_is_changed(vendor: str, variables: dict[str, str]) -> None:
    assert visible_devices(vendor, variables) == {}


def test_models_may_be_mixed_only_where_every_node_says_so() -> None:
    says, doesnt = {MIXED_LABEL: "true"}, {MIXED_LABEL: "false"}
    assert group("nvidia", says, says).may_mix_devices
    assert not group("nvidia", says, doesnt).may_mix_devices
    assert not group("nvidia", says, {}).may_mix_devices
    assert not WorkerGroup(name="empty", vendor="nvidia", nodes=()).may_mix_devices


def test_only_what_a_process_must_be_started_with_goes_where_ray_logs_it() -> None:
    early = {"LD_PRELOAD": "libtcmalloc.so", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2"}
    early |= {"RES_OPTIONS": "timeout:1"}
    secrets = {"WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "RAY_AUTH_TOKEN": "x", "HF_TOKEN": "x"}
    assert read_at_start({**early, **secrets, "NCCL_DEBUG": "WARN"}) == early


def test_what_starts_workers_is_told_of_no_device_list() -> None:
    lists = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}
    assert without_device_lists({**lists, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID"
    }
