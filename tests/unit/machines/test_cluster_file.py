"""``cluster.yaml`` as our planner reads it, and as the installed Ray accepts it."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships none; Ray brings it along
import pytest
import yaml

from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, Inventory

OURS = Path(__file__).parents[3] / "cluster.yaml"
NVIDIA = {"longhaul.group": "nvidia", "longhaul.vendor": "nvidia", "longhaul.device": "H100-SXM"}
AMD = {"longhaul.group": "amd", "longhaul.vendor": "amd", "longhaul.device": "MI300X"}


def read(tmp_path: Path, **data: Any) -> Inventory:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"max_workers": 8, **data}, sort_keys=False))
    return read_cluster(path)


def refusal(tmp_path: Path, **data: Any) -> str:
    with pytest.raises(ClusterError) as refused:
        read(tmp_path, **data)
    text = str(refused.value)
    assert "\n" not in text
    return text.removeprefix(f"{tmp_path}/cluster.yaml: ")


def test_each_labelled_node_type_is_a_group_at_its_largest(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        available_node_types={
            "n": {"max_workers": 2, "resources": {"CPU": 96, "GPU": 8}, "labels": NVIDIA},
            "a": {"max_workers": 1, "resources": {"CPU": 64, "GPU": 4}, "labels": AMD},
        },
    )
    assert [(group.name, group.vendor, group.device, group.num_devices) for group in found.groups] == [
        ("nvidia", "nvidia", "H100-SXM", 16),
        ("amd", "amd", "MI300X", 4),
    ]
    assert [node.node_id for node in found.groups[0].nodes] == ["n-0", "n-1"]


def test_node_types_of_one_label_are_one_group(tmp_path: Path) -> None:
    small = {"max_workers": 1, "resources": {"GPU": 4}, "labels": NVIDIA}
    large = {"max_workers": 1, "resources": {"GPU": 8}, "labels": NVIDIA}
    found = read(tmp_path, available_node_types={"small": small, "large": large})
    assert [group.num_devices for group in found.groups] == [12]


def test_nodes_without_a_label_are_the_group_local(tmp_path: Path) -> None:
    found = read(tmp_path, available_node_types={"w": {"max_workers": 3, "resources": {"CPU": 4}}})
    assert [(group.name, group.vendor, group.num_devices) for group in found.groups] == [("local", "cpu", 12)]


@pytest.mark.parametrize(
    ("max_workers", "of_head", "of_worker", "devices"),
    [
        (8, {}, {}, 2 + 8 * 2),  # a type may have as many workers as all together
        (8, {"max_workers": 0}, {"max_workers": 1}, 2 + 2),  # the head itself is no worker
        (8, {"max_workers": 1}, {"max_workers": 1}, 4 + 2),
        (1, {}, {"max_workers": 5}, 2 + 2),  # never more than all together
        (0, {}, {}, 2),
    ],
)
def test_nodes_are_counted_as_the_launcher_counts_them(
    tmp_path: Path, max_workers: int, of_head: dict[str, int], of_worker: dict[str, int], devices: int
) -> None:
    two_cores = {"resources": {"CPU": 2}}
    found = read(
        tmp_path,
        max_workers=max_workers,
        head_node_type="head",
        available_node_types={"head": two_cores | of_head, "worker": two_cores | of_worker},
    )
    assert [group.num_devices for group in found.groups] == [devices]


def test_a_simulated_group_is_declared_in_a_label(tmp_path: Path) -> None:
    labels = {"longhaul.group": "amd", "longhaul.vendor": "amd", "longhaul.simulated": "true"}
    found = read(tmp_path, available_node_types={"a": {"resources": {"GPU": 2}, "labels": labels}})
    assert found.groups[0].simulated


def test_two_vendors_in_one_group_are_refused(tmp_path: Path) -> None:
    mixed = {
        "n": {"resources": {"GPU": 8}, "labels": NVIDIA},
        "a": {"resources": {"GPU": 8}, "labels": AMD | {"longhaul.group": "nvidia"}},
    }
    assert refusal(tmp_path, available_node_types=mixed) == (
        "group 'nvidia' has nvidia H100-SXM (available_node_types.n) and amd MI300X "
        "(available_node_types.a); a group is one vendor and one device model: "
        "give them different longhaul.group labels"
    )


def test_two_device_models_in_one_group_are_refused(tmp_path: Path) -> None:
    mixed = {
        "a": {"resources": {"GPU": 8}, "labels": AMD},
        "b": {"resources": {"GPU": 8}, "labels": AMD | {"longhaul.device": "MI325X"}},
    }
    text = refusal(tmp_path, available_node_types=mixed)
    assert "has amd MI300X (available_node_types.a) and amd MI325X (available_node_types.b)" in text
    assert text.endswith('(longhaul.mixed_devices: "true" on all of its nodes allows several models)')


def test_device_models_may_be_mixed_where_every_node_type_of_the_group_says_so(tmp_path: Path) -> None:
    labels = AMD | {"longhaul.mixed_devices": "true"}
    one = {"max_workers": 1, "resources": {"GPU": 8}, "labels": labels}
    other = one | {"labels": labels | {"longhaul.device": "MI325X"}}
    (found,) = read(tmp_path, available_node_types={"a": one, "b": other}).groups
    assert found.device is None
    assert [node.device for node in found.nodes] == ["MI300X", "MI325X"]
    silent = other | {"labels": AMD | {"longhaul.device": "MI325X"}}
    assert "has amd MI300X" in refusal(tmp_path, available_node_types={"a": one, "b": silent})


def test_a_node_knows_its_labels(tmp_path: Path) -> None:
    found = read(tmp_path, available_node_types={"a": {"resources": {"GPU": 1}, "labels": AMD}})
    assert dict(found.groups[0].nodes[0].labels) == AMD


def test_a_named_group_without_a_vendor_is_refused_also_without_gpus(tmp_path: Path) -> None:
    node_type = {"resources": {"CPU": 8}, "labels": {"longhaul.group": "lab"}}
    assert refusal(tmp_path, available_node_types={"w": node_type}) == (
        "available_node_types.w.labels: found longhaul.vendor=None, expected one of nvidia, amd, cpu: "
        "group 'lab' must say whose devices it has"
    )


@pytest.mark.parametrize("labels", [{}, {"longhaul.vendor": "intel"}, {"longhaul.vendor": "NVIDIA"}])
def test_a_node_with_gpus_must_say_whose_they_are(tmp_path: Path, labels: dict[str, str]) -> None:
    text = refusal(tmp_path, available_node_types={"w": {"resources": {"GPU": 8}, "labels": labels}})
    assert text.startswith("available_node_types.w.labels: found longhaul.vendor=")
    assert "expected one of nvidia, amd, cpu" in text


@pytest.mark.parametrize("node_types", [{}, {"head": {"resources": {"CPU": 0}}}, {"w": {"max_workers": 0}}])
def test_a_cluster_without_devices_is_refused(tmp_path: Path, node_types: dict[str, Any]) -> None:
    assert refusal(tmp_path, available_node_types=node_types).startswith("no node type has devices")


@pytest.mark.parametrize(
    ("node_type", "says"),
    [
        (None, "w: found None, expected a mapping"),
        ({"resources": None}, "w.resources: found None, expected a mapping"),
        ({"resources": ["GPU"]}, "w.resources: found ['GPU'], expected a mapping"),
        ({"resources": {"CPU": "many"}}, "w.resources.CPU: found 'many', expected a whole number from 0"),
        ({"resources": {"GPU": 0.5}}, "w.resources.GPU: found 0.5, expected a whole number from 0"),
        ({"resources": {"GPU": True}}, "w.resources.GPU: found True, expected a whole number from 0"),
        ({"max_workers": -1}, "w.max_workers: found -1, expected a whole number from 0"),
        ({"labels": ["amd"]}, "w.labels: found ['amd'], expected a mapping"),
        (
            {"labels": {"longhaul.simulated": True}},
            "w.labels.longhaul.simulated: found True, expected text; put it in quotes",
        ),
        ({"labels": {1: "a"}}, "w.labels: found the label 1, expected text; put it in quotes"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_place(
    tmp_path: Path, node_type: object, says: str
) -> None:
    assert refusal(tmp_path, available_node_types={"w": node_type}) == f"available_node_types.{says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML"),
        ("a: b: c", "is not YAML"),
        ("", "has no 'available_node_types'"),
        ("- a", "has no 'available_node_types'"),
        ("available_node_types: 3", "has no 'available_node_types'"),
        ("a: 2026-99-99", "is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("[" * 10_000, "is not YAML"),
        ("apiVersion: ray.io/v1\nkind: RayCluster", "is a RayCluster of Kubernetes; expected a cluster file"),
        ("services: {web: {}}", "expected a cluster file of Ray's launcher"),
        ("max_workers: 1000000\navailable_node_types: {w: {}}", "1,000,000 nodes, at most 100,000"),
        ("max_workers: x\navailable_node_types: {w: {}}", "max_workers: found 'x'"),
    ],
)
def test_a_file_that_describes_no_cluster_is_refused_in_one_line(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=says) as refused:
        read_cluster(path)
    assert str(refused.value).startswith(f"{path}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match=r"can't be read .* give the path of a cluster.yaml"):
        read_cluster(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="is not text"):
        read_cluster(tmp_path / "cluster.yaml")


def test_our_own_file_offers_both_vendors() -> None:
    found = read_cluster(OURS)
    assert {group.name: (group.vendor, group.device, group.num_devices) for group in found.groups} == {
        "nvidia": ("nvidia", "H100-SXM", 16),
        "amd": ("amd", "MI300X", 16),
    }


def test_our_own_file_is_what_the_installed_ray_accepts() -> None:
    schema = json.loads(_ray_schema().read_text())
    jsonschema.validate(yaml.safe_load(OURS.read_text()), schema)


def test_rays_schema_is_one_that_refuses() -> None:
    data = yaml.safe_load(OURS.read_text()) | {"avaliable_node_types": {}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(_ray_schema().read_text()))


def _ray_schema() -> Path:
    """Found beside the package, which stays unimported."""
    package = find_spec("ray")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "autoscaler" / "ray-schema.json"
