"""The manifests for KubeRay, held against the fields of its API and against the rest of this tree."""

import copy
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships none; Ray brings it along
import pytest
import yaml

from cluster.accelerators import accelerator
from cluster.inventory import DEVICE_LABEL, GROUP_LABEL, VENDOR_LABEL
from tests.unit.dockerfiles import pins
from tests.unit.kuberay_api import SCHEMAS

ROOT = Path(__file__).parents[3]
MANIFESTS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "cluster/kuberay").glob("*.yaml"))
}
SPEC = MANIFESTS["raycluster"]["spec"]
GROUPS = {group["groupName"]: group for group in SPEC["workerGroupSpecs"]}


def check(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_field_is_one_of_the_api(name: str) -> None:
    check(MANIFESTS[name])


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("raycluster", "spec.raysVersion", "2.60.0"),
        ("raycluster", "spec.workerGroupSpecs.0.label", {}),
        ("raycluster", "spec.workerGroupSpecs.0.maxReplicas", "2"),
        ("raycluster", "spec.workerGroupSpecs.1.rayStartParams.labels", "longhaul.group=amd"),
        ("raycluster", "spec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("raycluster", "spec.headGroupSpec.serviceType", "LoadBalancer"),
        ("raycluster", "spec.headGroupSpec.template.spec.containers.0.command", "x"),
        ("raycluster", "spec.headGroupSpec.template.spec.securityContext.runAsNonRoot", False),
        ("raycluster", "spec.headGroupSpec.template.spec.securityContext.runAsUser", 0),
        (
            "raycluster",
            "spec.workerGroupSpecs.1.template.spec.securityContext.seccompProfile",
            {"type": "Unconfined"},
        ),
        ("raycluster", "spec.gcsFaultToleranceOptions.redisPassword.value", "secret"),
        ("raycluster", "spec.gcsFaultToleranceOptions.redisAddress", "redis://:secret@redis:6379"),
        ("raycluster", "spec.authOptions.mode", "disabled"),
        ("rayjob", "spec.retries", 2),
        ("rayjob", "spec.submissionMode", "Http"),
        ("networkpolicy", "spec.egress", []),
    ],
)
def test_an_unknown_field_or_an_unsafe_value_is_refused(name: str, path: str, value: object) -> None:
    manifest = copy.deepcopy(MANIFESTS[name])
    _set(manifest, path.split("."), value)
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 0), (2, 1), (130, 1), (137, 1)])
def test_a_sweep_with_a_failed_cell_is_an_answer_and_not_tried_on_another_cluster(
    code: int, expected: int, tmp_path: Path
) -> None:
    (tmp_path / "longhaul").write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    (tmp_path / "longhaul").chmod(0o755)
    # Ray runs a job's entry point in a shell.
    entrypoint = MANIFESTS["rayjob"]["spec"]["entrypoint"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", entrypoint], env={"PATH": path}, timeout=60, check=False)
    assert done.returncode == expected


def test_a_job_gets_the_same_cluster_as_one_that_stays() -> None:
    assert MANIFESTS["rayjob"]["spec"]["rayClusterSpec"] == SPEC


@pytest.mark.parametrize(("vendor", "resource"), [("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu")])
def test_each_vendor_is_a_group_of_whole_nodes_with_its_own_image(vendor: str, resource: str) -> None:
    group = GROUPS[vendor]
    chip = accelerator(group["labels"][DEVICE_LABEL])
    assert chip is not None
    assert chip.vendor == group["labels"][VENDOR_LABEL] == group["labels"][GROUP_LABEL] == vendor

    (container,) = group["template"]["spec"]["containers"]
    launcher = yaml.safe_load((ROOT / "cluster.yaml").read_text())["available_node_types"][vendor]
    assert container["image"] == launcher["docker"]["worker_image"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert [name for name in container["resources"]["limits"] if name.endswith("gpu")] == [resource]
    assert int(container["resources"]["limits"][resource]) == launcher["resources"]["GPU"]


@pytest.mark.parametrize("group", [SPEC["headGroupSpec"], *GROUPS.values()])
def test_shared_memory_is_a_volume_that_fits_into_the_pods_memory(group: dict[str, Any]) -> None:
    pod = group["template"]["spec"]
    (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
    (container,) = pod["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    # What lies in there counts as the container's memory.
    assert _gib(shm["emptyDir"]["sizeLimit"]) < _gib(container["resources"]["limits"]["memory"])


@pytest.mark.parametrize("group", [SPEC["headGroupSpec"], *GROUPS.values()])
def test_a_container_gains_no_rights_and_writes_to_volumes_alone(group: dict[str, Any]) -> None:
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    # Ray's files, and what libraries keep in the home that the images make.
    assert mounted.keys() == {"/dev/shm", "/tmp", "/home/longhaul"}
    assert set(mounted.values()) == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("group", [SPEC["headGroupSpec"], *GROUPS.values()])
def test_no_pod_gives_rays_metrics_which_ask_for_no_token(group: dict[str, Any]) -> None:
    (container,) = group["template"]["spec"]["containers"]
    assert {"name": "RAY_enable_metrics_collection", "value": "0"} in container["env"]


def test_the_heads_autoscaler_and_dashboard_give_no_metrics_either() -> None:
    (container,) = SPEC["headGroupSpec"]["template"]["spec"]["containers"]
    for name in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT"):
        assert {"name": name, "value": "-1"} in container["env"]


def test_every_pod_has_a_filter_of_system_calls_and_amds_has_our_own() -> None:
    head = SPEC["headGroupSpec"]["template"]["spec"]["securityContext"]
    profiles = {name: group["template"]["spec"]["securityContext"] for name, group in GROUPS.items()}
    assert head["seccompProfile"] == profiles["nvidia"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (installed,) = re.findall(
        r"cluster/kuberay/seccomp-amd\.json /var/lib/kubelet/seccomp/(\S+)",
        (ROOT / "docs/operations.md").read_text(encoding="utf-8"),
    )
    assert profiles["amd"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": installed}
    assert profiles["amd"]["supplementalGroups"]


def test_ray_is_the_version_that_is_in_the_images() -> None:
    assert SPEC["rayVersion"] == pins((ROOT / "constraints.txt").read_text())["ray"]


def test_the_policy_lets_no_one_near_but_the_cluster_and_the_operator_at_the_dashboard() -> None:
    policy = MANIFESTS["networkpolicy"]["spec"]
    pods = policy["podSelector"]["matchLabels"]
    templates = [SPEC["headGroupSpec"]["template"], *(group["template"] for group in GROUPS.values())]
    assert all(template["metadata"]["labels"] == pods for template in templates)
    cluster, operator = policy["ingress"]
    assert cluster == {"from": [{"podSelector": policy["podSelector"]}]}
    assert [port["port"] for port in operator["ports"]] == [8265]


def test_the_job_submits_a_sweep_that_is_in_the_image() -> None:
    program, verb, spec, *_ = shlex.split(MANIFESTS["rayjob"]["spec"]["entrypoint"])
    assert (program, verb) == ("longhaul", "sweep")
    sweep = yaml.safe_load((ROOT / Path(spec).relative_to("/opt/longhaul")).read_text())
    assert set(sweep["groups"]) == set(GROUPS)


@pytest.mark.parametrize("name", MANIFESTS)
def test_no_manifest_holds_a_secret(name: str) -> None:
    text = (ROOT / f"cluster/kuberay/{name}.yaml").read_text()
    assert "kind: Secret" not in text
    assert "stringData" not in text
    assert re.findall(r"(?i)^\s*(?:password|token)\s*:", text, flags=re.MULTILINE) == []


def _set(data: Any, path: list[str], value: object) -> None:
    *parents, last = path
    for key in parents:
        data = data[int(key)] if isinstance(data, list) else data[key]
    data[last] = value


def _gib(quantity: str) -> int:
    (number,) = re.findall(r"^(\d+)Gi$", quantity)
    return int(number)
