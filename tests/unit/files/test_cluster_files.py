"""What an operator changes and starts: ``cluster.yaml`` and the units for systemd."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.accelerators import accelerator
from cluster.inventory import DEVICE_LABEL, GROUP_LABEL, VENDOR_LABEL

ROOT = Path(__file__).parents[3]
LAUNCHER: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
DEVICE_FLAGS = {
    "nvidia": {"--gpus=all", "--ipc=host", "--ulimit=memlock=-1"},
    "amd": {
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--group-add=video",
        "--group-add=render",
        "--ipc=host",
        "--ulimit=memlock=-1",
    },
}
WITHOUT_METRICS = "RAY_enable_metrics_collection=0"
WITHOUT_THE_HEADS = ["AUTOSCALER_METRIC_PORT=-1", "DASHBOARD_METRIC_PORT=-1"]
# Of 10, by `systemd-analyze security`.
MOST_EXPOSED = 3.0
UNITS = {path.name: path.read_text() for path in sorted((ROOT / "cluster").glob("*.service"))}


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_rented_node_says_what_it_is_and_sees_its_devices(vendor: str) -> None:
    node_type = LAUNCHER["available_node_types"][vendor]
    labels = node_type["labels"]
    assert (labels[GROUP_LABEL], labels[VENDOR_LABEL]) == (vendor, vendor)
    chip = accelerator(labels[DEVICE_LABEL])
    assert chip is not None
    assert chip.vendor == vendor
    assert set(node_type["docker"]["worker_run_options"]) >= DEVICE_FLAGS[vendor]


def test_no_rented_nodes_container_gains_rights_or_goes_without_a_filter_of_system_calls() -> None:
    types = LAUNCHER["available_node_types"]
    options = [LAUNCHER["docker"]["head_run_options"]]
    options += [types[name]["docker"]["worker_run_options"] for name in ("nvidia", "amd")]
    assert all("--security-opt=no-new-privileges" in one for one in options)
    flat = [option for one in options for option in one]
    assert [one for one in flat if "unconfined" in one or "--privileged" in one] == []


def test_the_host_of_an_amd_node_is_prepared_in_all_that_every_host_is() -> None:
    commands = LAUNCHER["available_node_types"]["amd"]["initialization_commands"]
    assert any("numa_balancing" in command for command in commands)
    # A node type's commands replace the common ones.
    assert {command for command in LAUNCHER["initialization_commands"] if "sudo" in command} < set(commands)


def test_each_node_type_has_its_own_image_and_all_of_one_release() -> None:
    images = [LAUNCHER["docker"]["image"]]
    images += [LAUNCHER["available_node_types"][name]["docker"]["worker_image"] for name in ("nvidia", "amd")]
    assert len(set(images)) == 3
    assert {image.partition(":")[2] for image in images} == {"0.1.0"}


def test_rays_start_is_authenticated_and_its_dashboard_is_on_loopback() -> None:
    heads = _starts(LAUNCHER["head_start_ray_commands"])
    workers = _starts(LAUNCHER["worker_start_ray_commands"])
    assert all("export RAY_AUTH_MODE=token" in command for command in heads + workers)
    assert "--dashboard-host=127.0.0.1" in heads[0]
    assert "~/.ray/auth_token" in LAUNCHER["file_mounts"]


def test_rays_files_are_below_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / ".longhaul").mkdir(mode=0o777)
    for command in _starts(LAUNCHER["head_start_ray_commands"] + LAUNCHER["worker_start_ray_commands"]):
        before, _, options = command.partition("ray start")
        assert "--temp-dir=$HOME/.longhaul/ray" in options.split()
        (tmp_path / ".longhaul").chmod(0o777)
        environment = os.environ | {"HOME": str(tmp_path)}
        subprocess.run(["bash", "-c", before], env=environment, timeout=30, check=True)
        assert stat.S_IMODE((tmp_path / ".longhaul").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", UNITS)
def test_a_units_files_are_closed_to_others(name: str) -> None:
    service = _sections(UNITS[name])["Service"]
    assert service["CacheDirectory"] == [name.removesuffix(".service")]
    assert service["CacheDirectoryMode"] == ["0700"]
    assert service["PrivateTmp"] == ["yes"]
    (start,) = service["ExecStart"]
    if name == "longhaul-head.service":
        assert f"--temp-dir=/var/cache/{service['CacheDirectory'][0]}/ray" in start.split()


@pytest.mark.parametrize(
    ("settings", "code"),
    [({}, 2), ({"RAY_AUTH_MODE": "token"}, 2), ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}, 0)],
)
def test_the_heads_unit_starts_nothing_without_a_token(settings: dict[str, str], code: int) -> None:
    service = _sections(UNITS["longhaul-head.service"])["Service"]
    guard, ray, *_ = service["ExecStart"][0].split()
    assert Path(ray).name == "ray"
    command = [str(ROOT / Path(guard).relative_to("/opt/longhaul")), "true"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code
    assert ("ray get-auth-token --generate" in done.stderr) == bool(code)
    assert service["RestartPreventExitStatus"] == ["2"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_comes_back_and_ends_within_its_time(name: str) -> None:
    unit = _sections(UNITS[name])
    assert unit["Service"]["Restart"] == ["always"]
    assert unit["Service"]["User"] == ["longhaul"]
    assert unit["Service"]["KillMode"] == ["mixed"]
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]
    assert {"After", "Wants"} <= unit["Unit"].keys()


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_gains_no_rights_and_writes_to_no_system_folder(name: str) -> None:
    service = _sections(UNITS[name])["Service"]
    wanted = {
        "NoNewPrivileges": "yes", "ProtectSystem": "full", "ProtectControlGroups": "yes",
        "RestrictSUIDSGID": "yes", "UMask": "0077", "CapabilityBoundingSet": "", "RestrictNamespaces": "yes",
        "ProtectKernelTunables": "yes", "SystemCallFilter": "@system-service",
    }  # fmt: skip
    assert {key: service[key] for key in wanted} == {key: [value] for key, value in wanted.items()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_a_unit_hardly_exposed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(UNITS[name], encoding="utf-8")
    assert _exposure(path) <= MOST_EXPOSED
    bare = re.sub(r"^(NoNew|Protect|Restrict|System|Capability)\w+=.*\n", "", UNITS[name], flags=re.MULTILINE)
    path.write_text(bare, encoding="utf-8")
    assert _exposure(path) > MOST_EXPOSED


def test_the_workers_unit_keeps_no_device_from_it() -> None:
    """What closes devices would close those that are to be trained on; ``ProtectClock`` does so too."""
    service = _sections(UNITS["longhaul-worker.service"])["Service"]
    assert (
        service.keys() & {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "PrivateUsers"}
        == set()
    )


def _exposure(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"exposure level for \S+: (\d+\.\d+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd can't judge a file: {done.stderr.strip()[:100]}")
    return float(found[1])


def test_ray_tells_its_makers_nothing_wherever_our_files_start_it() -> None:
    off = "RAY_USAGE_STATS_ENABLED=0"
    starts = _starts(LAUNCHER["head_start_ray_commands"] + LAUNCHER["worker_start_ray_commands"])
    texts = [*starts, *UNITS.values()]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "cluster/docker").glob("Dockerfile.*")]
    texts.append((ROOT / "cluster/start_worker.sh").read_text(encoding="utf-8"))
    assert len(texts) == 2 + 2 + 3 + 1
    assert [text[:60] for text in texts if off not in text] == []
    for name in ("raycluster", "rayjob"):
        manifest = (ROOT / f"cluster/kuberay/{name}.yaml").read_text(encoding="utf-8")
        assert '{name: RAY_USAGE_STATS_ENABLED, value: "0"}' in manifest


def test_rays_metrics_which_ask_for_no_token_are_off_wherever_our_files_start_it() -> None:
    """Those of ``start_worker.sh`` and Slurm have tests of their own: what the operator set wins there."""
    for command in _starts(LAUNCHER["head_start_ray_commands"] + LAUNCHER["worker_start_ray_commands"]):
        assert WITHOUT_METRICS in command.partition("ray start")[0].split("export ")[1].rstrip("; ").split()
    (start,) = _starts(LAUNCHER["head_start_ray_commands"])
    assert {*WITHOUT_THE_HEADS} <= {*start.partition("ray start")[0].rstrip("; ").split()}
    head = UNITS["longhaul-head.service"]
    # systemd lets a file of variables win over what stands here.
    variables = _sections(head)["Service"]["Environment"]
    assert {WITHOUT_METRICS, " ".join(WITHOUT_THE_HEADS)} <= {*variables}
    (start,) = _sections(UNITS["longhaul-worker.service"])["Service"]["ExecStart"]
    assert Path(start).name == "start_worker.sh"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(name: str, tmp_path: Path) -> None:
    """Whose programs are where ours are only after an installation: here another one stands for them."""
    assert "Unknown key" in "".join(_faults(tmp_path / name, UNITS[name].replace("Restart=", "Restrat=")))
    assert _faults(tmp_path / name, UNITS[name]) == []


def test_the_workers_unit_starts_our_script_and_does_not_repeat_wrong_settings() -> None:
    service = _sections(UNITS["longhaul-worker.service"])["Service"]
    (start,) = service["ExecStart"]
    assert (ROOT / Path(start).relative_to("/opt/longhaul")).stat().st_mode & 0o111
    assert service["RestartPreventExitStatus"] == ["2"]
    (prepare,) = service["ExecStartPre"]
    assert prepare.startswith("+/bin/sh -c")
    assert "numa_balancing" in shlex.split(prepare)[2]


def test_the_heads_unit_trains_nothing_and_shows_its_dashboard_to_nobody() -> None:
    (start,) = _sections(UNITS["longhaul-head.service"])["Service"]["ExecStart"]
    assert {"--head", "--num-cpus=0", "--dashboard-host=127.0.0.1", "--block"} <= set(start.split())


def test_every_file_of_the_room_is_installed_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["cluster"]
    files = {path for path in _files_of_the_room() if path.suffix != ".py"}
    installed = {path for pattern in patterns for path in (ROOT / "cluster").glob(pattern) if path.is_file()}
    assert files - installed == set()
    assert all(any((ROOT / "cluster").glob(pattern)) for pattern in patterns)


def test_nothing_is_fetched_by_an_address_of_ours() -> None:
    """Images and packages come from where the operator's own tools are told to look."""
    files = [ROOT / "cluster.yaml", *_files_of_the_room(), ROOT / "docs/operations.md"]
    found = {url for path in files for url in re.findall(r"https?://[^\s,`'\"]+", path.read_text())}
    assert found <= {"http://127.0.0.1:8265"}


def _files_of_the_room() -> list[Path]:
    return [
        path for path in (ROOT / "cluster").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def _faults(path: Path, unit: str) -> list[str]:
    """Of this unit; a machine may have others of its own with faults."""
    path.write_text(re.sub(r"(?m)^(ExecStart=)/opt/longhaul/\S+", rf"\1{shutil.which('true')}", unit))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return [line for line in done.stderr.splitlines() if path.name in line]


def _starts(commands: list[str]) -> list[str]:
    return [command for command in commands if "ray start" in command]


def _sections(unit: str) -> dict[str, dict[str, list[str]]]:
    """A key of a unit may stand several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in unit.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return sections
