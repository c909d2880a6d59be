"""``cluster.yaml`` and KubeRay's manifest through the code with which the installed Ray reads them."""

import json
import re
from pathlib import Path
from typing import Any

import click
import jsonschema  # type: ignore[import-untyped]  # it ships none; Ray brings it along
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.sdk import get_docker_host_mount_location
from ray.scripts.scripts import cli, start

from cluster.cluster_file import read_cluster

ROOT = Path(__file__).parents[3]
OURS = ROOT / "cluster.yaml"
RAYS = Path(ray.autoscaler.__file__).parent


def ours() -> dict[str, Any]:
    data = yaml.safe_load(OURS.read_text())
    assert isinstance(data, dict)
    return data


def prepared(data: dict[str, Any]) -> dict[str, Any]:
    """As ``ray up`` does it: filled with the provider's defaults, then validated."""
    config: dict[str, Any] = prepare_config(data)
    validate_config(config)
    return config


def test_ray_up_accepts_it() -> None:
    assert prepared(ours())["available_node_types"].keys() == {"head", "nvidia", "amd"}


@pytest.mark.parametrize("key", ["avaliable_node_types", "max_worker"])
def test_ray_up_refuses_a_key_that_it_does_not_know(key: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=key):
        prepared(ours() | {key: 1})


@pytest.mark.parametrize("key", ["label", "worker_image"])
def test_ray_up_refuses_a_key_that_it_does_not_know_in_a_node_type(key: str) -> None:
    data = ours()
    data["available_node_types"]["amd"][key] = "x"
    with pytest.raises(jsonschema.ValidationError, match=key):
        prepared(data)


def test_the_filter_of_amds_containers_lies_where_ray_lays_it() -> None:
    data = ours()
    option = "--security-opt=seccomp="
    options = data["available_node_types"]["amd"]["docker"]["worker_run_options"]
    (filter_file,) = [one.removeprefix(option) for one in options if one.startswith(option)]
    above = get_docker_host_mount_location(data["cluster_name"])
    source = data["file_mounts"][filter_file.removeprefix(above)]
    assert json.loads((ROOT / source).read_text())["defaultAction"] == "SCMP_ACT_ALLOW"


def test_nothing_of_rays_defaults_installs_another_python_or_ray() -> None:
    config = prepared(ours())
    commands = [*config["head_setup_commands"], *config["worker_setup_commands"]]
    commands += config["initialization_commands"]
    assert [command for command in commands if "conda" in command or "ray" in command] == []

    without = prepared({key: value for key, value in ours().items() if key != "setup_commands"})
    assert any("conda" in command for command in without["worker_setup_commands"])


def test_the_head_gets_the_packages_that_this_ray_rents_machines_with() -> None:
    defaults = yaml.safe_load((RAYS / "azure" / "defaults.yaml").read_text())
    assert _packages(ours()["head_setup_commands"]) == _packages(defaults["head_setup_commands"])


def test_what_azure_is_asked_for_is_what_rays_template_takes() -> None:
    template = json.loads((RAYS / "_private" / "_azure" / "azure-vm-template.json").read_text())
    for name, node_type in ours()["available_node_types"].items():
        assert node_type["node_config"]["azure_arm_parameters"].keys() <= template["parameters"].keys(), name


@pytest.mark.parametrize("path", ["cluster.yaml", "cluster/start_worker.sh", "cluster/longhaul-head.service"])
def test_ray_start_has_every_option_that_we_give_it(path: str) -> None:
    known = {name for option in start.params for name in option.opts}
    given = {
        option
        for command in re.findall(r"\bray start ((?:[^;\n]|\n    +--)+)", (ROOT / path).read_text())
        for option in re.findall(r"(?<!\S)--[a-z-]+", command)
    }
    assert len(given) >= 3
    assert given - known == set()


def test_ray_has_the_commands_that_the_runbook_gives_to_it() -> None:
    runbook = (ROOT / "docs/operations.md").read_text()
    blocks = "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```", runbook, flags=re.MULTILINE | re.DOTALL))
    given = re.findall(r"\bray ((?:job )?[a-z-]+)((?: [^\s#&|]+)*)", re.sub(r"-- python.*|#.*", "", blocks))
    assert {"up", "down", "dashboard", "drain-node", "job submit"} <= {verb for verb, _ in given}
    for verb, rest in given:
        command = cli
        for word in verb.split():
            assert isinstance(command, click.Group)
            command = command.commands[word]
        known = {name for option in command.params for name in option.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known, verb


def test_ray_on_kubernetes_sees_the_groups_that_the_launchers_file_promises(tmp_path: Path) -> None:
    manifest = yaml.safe_load((ROOT / "cluster/kuberay/raycluster.yaml").read_text())
    manifest["metadata"]["namespace"] = "default"
    seen = tmp_path / "seen.yaml"
    seen.write_text(yaml.safe_dump(_derive_autoscaling_config_from_ray_cr(manifest)))

    found, promised = read_cluster(seen).groups, read_cluster(OURS).groups

    assert {group.name: (group.vendor, group.device, group.num_devices) for group in found} == {
        group.name: (group.vendor, group.device, group.num_devices) for group in promised
    }


def _packages(commands: list[str]) -> set[str]:
    return {word for command in commands for word in command.split() if "==" in word}
