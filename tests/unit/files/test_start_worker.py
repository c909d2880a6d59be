"""``cluster/start_worker.sh`` under a bash whose PATH holds only fakes: ray, nvidia-smi, sleep and date."""

import os
import select
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.accelerators import accelerator

SCRIPT = Path(__file__).parents[3] / "cluster" / "start_worker.sh"
TOKEN = SCRIPT.with_name("require_token.sh")
DEADLINE_S = 20

# Ends the script after as many waits as a test needs: the loop itself has no end.
SLEEP = 'echo "$1" >> "$HERE/waits"; [[ $(wc -l < "$HERE/waits") -lt ${MOST_WAITS:-1} ]] || kill -TERM $PPID'
RAY = 'printf "%s\\n" "$*" >> "$HERE/ray"; exit 7'


class Machine:
    """A root folder for devices and a PATH of fakes; ``ray`` and ``waits`` are what the script did."""

    def __init__(self, here: Path) -> None:
        self.here = here
        (here / "bin").mkdir()
        for tool in ("bash", "cat", "chmod", "dirname", "grep", "mkdir", "sort", "wc"):
            (here / "bin" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        self.has("ray", RAY)
        self.has("sleep", SLEEP)
        self.has("date", "echo 0")

    def has(self, command: str, does: str) -> None:
        path = self.here / "bin" / command
        path.write_text(f"#!{shutil.which('bash')}\n{does}\n")
        path.chmod(0o755)

    def holds(self, path: str, text: str = "") -> None:
        (self.here / path).parent.mkdir(parents=True, exist_ok=True)
        (self.here / path).write_text(text)

    def start(self, *options: str, **settings: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.here / "bin/bash", SCRIPT, *options],
            env={
                "PATH": str(self.here / "bin"),
                "HERE": str(self.here),
                "LONGHAUL_ROOT": str(self.here),
                "LONGHAUL_HEAD": "10.0.0.1:6379",
                "LONGHAUL_TEMP": str(self.here / "closed"),
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": "0" * 64,
                **settings,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, **settings: str) -> tuple[int, str]:
        with self.start(*options, **settings) as script:
            _, said = script.communicate(timeout=DEADLINE_S)
        return script.returncode, said

    def lines(self, name: str) -> list[str]:
        path = self.here / name
        return path.read_text().splitlines() if path.exists() else []

    def labels(self) -> dict[str, str]:
        (started,) = self.lines("ray")
        (labels,) = (word for word in started.split() if word.startswith("--labels="))
        return dict(pair.split("=") for pair in labels.removeprefix("--labels=").split(","))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    return Machine(tmp_path)


def with_nvidia(machine: Machine, *names: str) -> None:
    machine.has("nvidia-smi", "\n".join(f"echo '{name}'" for name in names))


def with_amd(machine: Machine, *names: str) -> None:
    machine.holds("dev/kfd")
    for index, name in enumerate(names):
        machine.holds(f"sys/class/drm/card{index}/device/product_name", f"{name}\n")


def test_a_node_with_nvidia_devices_says_so_in_its_labels(machine: Machine) -> None:
    with_nvidia(machine, "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")

    assert machine.run()[0] == 0

    assert machine.labels() == {
        "longhaul.group": "nvidia",
        "longhaul.vendor": "nvidia",
        "longhaul.device": "NVIDIA-H100-80GB-HBM3",
    }


def test_a_node_with_amd_devices_says_so_in_its_labels(machine: Machine) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM", "", "AMD Instinct MI300X OAM")

    assert machine.run()[0] == 0

    assert machine.labels() == {
        "longhaul.group": "amd",
        "longhaul.vendor": "amd",
        "longhaul.device": "AMD-Instinct-MI300X-OAM",
    }


@pytest.mark.parametrize(("vendor", "name"), [("nvidia", "NVIDIA B200"), ("amd", "AMD Instinct MI325X")])
def test_the_device_it_labels_is_one_that_the_planner_knows(machine: Machine, vendor: str, name: str) -> None:
    (with_nvidia if vendor == "nvidia" else with_amd)(machine, name)
    machine.run()
    chip = accelerator(machine.labels()["longhaul.device"])
    assert chip is not None
    assert chip.vendor == vendor


def test_a_machine_without_devices_joins_only_when_told_that_this_is_right(machine: Machine) -> None:
    code, said = machine.run()
    assert (code, machine.lines("ray")) == (1, [])
    assert "found no device" in said
    assert "LONGHAUL_VENDOR=cpu" in said

    assert machine.run(LONGHAUL_VENDOR="cpu")[0] == 0
    assert machine.labels() == {"longhaul.group": "cpu", "longhaul.vendor": "cpu"}


def test_a_driver_that_does_not_answer_yet_is_tried_again_by_systemd(machine: Machine) -> None:
    machine.has("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    code, said = machine.run(LONGHAUL_VENDOR="nvidia")
    assert code == 1
    assert "nvidia-smi finds no device" in said

    code, said = machine.run(LONGHAUL_VENDOR="amd")
    assert code == 1
    assert "is the driver amdgpu loaded?" in said


def test_a_machine_with_devices_of_both_vendors_must_say_which_to_use(machine: Machine) -> None:
    with_nvidia(machine, "NVIDIA L40S")
    with_amd(machine)
    code, said = machine.run()
    assert (code, machine.lines("ray")) == (2, [])
    assert "devices of NVIDIA and of AMD" in said

    machine.run(LONGHAUL_VENDOR="nvidia")
    assert machine.labels()["longhaul.vendor"] == "nvidia"


def test_two_models_in_one_machine_are_refused(machine: Machine) -> None:
    with_nvidia(machine, "NVIDIA L40S", "NVIDIA H200")
    code, said = machine.run()
    assert (code, machine.lines("ray")) == (2, [])
    assert "several models (NVIDIA H200, NVIDIA L40S)" in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"LONGHAUL_HEAD": ""}, "LONGHAUL_HEAD is not set"),
        ({"LONGHAUL_VENDOR": "intel"}, "LONGHAUL_VENDOR is 'intel'; expected nvidia, amd or cpu"),
    ],
)
def test_wrong_settings_end_it_for_good(machine: Machine, settings: dict[str, str], says: str) -> None:
    with_nvidia(machine, "NVIDIA L40S")
    code, said = machine.run(**settings)
    assert (code, machine.lines("ray")) == (2, [])
    assert says in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"RAY_AUTH_MODE": ""}, "RAY_AUTH_MODE is '', expected token"),
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE is 'disabled', expected token"),
        ({"RAY_AUTH_TOKEN": ""}, "/.ray/auth_token"),
        ({"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/nowhere"}, "none that we may read in /nowhere"),
        ({"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/dev/null"}, "none that we may read in /dev/null"),
    ],
)
def test_without_a_token_no_node_is_opened(machine: Machine, settings: dict[str, str], says: str) -> None:
    code, said = machine.run(LONGHAUL_VENDOR="cpu", **settings)
    assert (code, machine.lines("ray"), said.count("\n")) == (2, [], 1)
    assert says in said
    assert "ray get-auth-token --generate" in said


def test_a_token_in_a_file_will_do(machine: Machine) -> None:
    machine.holds("token", "0" * 64)
    machine.run(LONGHAUL_VENDOR="cpu", RAY_AUTH_TOKEN="", RAY_AUTH_TOKEN_PATH=str(machine.here / "token"))
    machine.holds(".ray/auth_token", "0" * 64)
    machine.run(LONGHAUL_VENDOR="cpu", RAY_AUTH_TOKEN="", HOME=str(machine.here))
    assert len(machine.lines("ray")) == 2


@pytest.mark.parametrize("settings", [{}, {"LONGHAUL_TEMP": "", "CACHE_DIRECTORY": "closed"}])
def test_rays_files_go_below_a_folder_that_is_closed_to_others(
    machine: Machine, settings: dict[str, str]
) -> None:
    folder = machine.here / "closed"
    folder.mkdir()
    folder.chmod(0o777)
    given = {name: str(machine.here / value) if value else "" for name, value in settings.items()}
    machine.run(LONGHAUL_VENDOR="cpu", **given)
    (started,) = machine.lines("ray")
    assert f" --temp-dir={folder}/ray " in started
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_somebody_else_has_chosen_is_refused(machine: Machine) -> None:
    (machine.here / "elsewhere").mkdir()
    (machine.here / "closed").symlink_to("elsewhere")
    code, said = machine.run(LONGHAUL_VENDOR="cpu")
    assert (code, machine.lines("ray")) == (2, [])
    assert "can't be closed to others" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(machine: Machine) -> None:
    (machine.here / "closed").mkdir()
    os.chown(machine.here / "closed", 65534, 65534)
    code, said = machine.run(LONGHAUL_VENDOR="cpu")
    assert (code, machine.lines("ray")) == (2, [])
    assert "can't be closed to others" in said


def test_a_device_without_a_name_is_not_given_one(machine: Machine) -> None:
    with_amd(machine)
    assert "LONGHAUL_DEVICE" in machine.run()[1]
    assert "longhaul.device" not in machine.labels()


def test_settings_override_what_it_would_have_chosen(machine: Machine) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    machine.run(
        "--num-gpus=4", LONGHAUL_GROUP="-rack 7: amd-", LONGHAUL_DEVICE="MI300X", LONGHAUL_DOMAIN="row 3"
    )
    assert machine.labels() == {
        "longhaul.group": "rack-7--amd",  # what Ray takes as a label
        "longhaul.vendor": "amd",
        "longhaul.device": "MI300X",
        "longhaul.domain": "row-3",
    }
    (started,) = machine.lines("ray")
    assert started.startswith("start --address=10.0.0.1:6379 --labels=")
    assert started.endswith(" --block --num-gpus=4")


def test_an_empty_group_is_the_vendors_and_one_without_letters_is_refused(machine: Machine) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    machine.run(LONGHAUL_GROUP="")
    assert machine.labels()["longhaul.group"] == "amd"
    code, said = machine.run(LONGHAUL_GROUP="-./ -")
    assert code == 2
    assert "LONGHAUL_GROUP is '-./ -'; expected a name with letters or digits" in said


@pytest.mark.parametrize(("setting", "warns"), [("1\n", True), ("0\n", False)])
def test_numa_balancing_on_an_amd_node_is_warned_of(machine: Machine, setting: str, warns: bool) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    machine.holds("proc/sys/kernel/numa_balancing", setting)
    code, said = machine.run()
    assert code == 0
    assert ("RCCL stalls" in said) == warns


def with_python(machine: Machine, code: int) -> None:
    """What runs ray: it has the package amdsmi with code 0."""
    machine.has("python-of-ray", f'printf "%s\\n" "$*" >> "$HERE/python"; exit {code}')
    (machine.here / "bin/ray").write_text(f"#!{machine.here}/bin/python-of-ray -E\n")


def test_an_amd_node_whose_ray_would_count_no_device_is_refused(machine: Machine) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    with_python(machine, 1)
    code, said = machine.run()
    assert code == 2
    assert "install /opt/rocm/share/amd_smi, or say --num-gpus" in said
    assert machine.lines("python") == ["-E -c import amdsmi"]


@pytest.mark.parametrize(("options", "has_it"), [((), 0), (("--num-gpus=8",), 1), (("--num-gpus", "8"), 1)])
def test_an_amd_node_whose_devices_are_counted_starts(
    machine: Machine, options: tuple[str, ...], has_it: int
) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    with_python(machine, has_it)
    assert machine.run(*options)[0] == 0
    assert machine.lines("python")[-1].startswith(f"-E {machine.here}/bin/ray start --address=")


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "none 2,3"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, "2,3 1"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "none 1"),
        ({}, "none none"),
    ],
)
def test_ray_gets_devices_by_the_variable_that_it_takes(
    machine: Machine, variables: dict[str, str], seen: str
) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    machine.has("ray", 'echo "${ROCR_VISIBLE_DEVICES-none} ${HIP_VISIBLE_DEVICES-none}" >> "$HERE/ray"')
    assert machine.run(**variables)[0] == 0
    assert machine.lines("ray") == [seen]


@pytest.mark.parametrize("value", ["", "GPU-5f1c", "0,", "0;rm"])
def test_devices_that_the_other_variable_would_not_name_are_refused(machine: Machine, value: str) -> None:
    with_amd(machine, "AMD Instinct MI300X OAM")
    code, said = machine.run(ROCR_VISIBLE_DEVICES=value)
    assert code == 2
    assert "expected HIP_VISIBLE_DEVICES with the devices' numbers" in said


def test_ray_is_started_again_each_time_after_a_longer_wait(machine: Machine) -> None:
    code, said = machine.run(LONGHAUL_VENDOR="cpu", MOST_WAITS="8")
    assert code == 0
    assert len(machine.lines("ray")) == 8
    waits = machine.lines("waits")
    assert_about(waits, [2, 4, 8, 10, 10, 10, 10, 10])
    assert f"ray ended with 7; starting it again in {waits[-1]} s" in said


def test_nodes_that_lose_a_head_together_do_not_come_back_together(machine: Machine) -> None:
    machine.run(LONGHAUL_VENDOR="cpu", MOST_WAITS="80")
    longest = machine.lines("waits")[3:]
    assert_about(longest, [10] * 77)
    # By chance one of ten million runs has none there.
    assert any(float(wait) < 7 for wait in longest) and any(float(wait) > 13 for wait in longest), longest


def assert_about(waits: list[str], expected: list[float]) -> None:
    """A wait is at most half longer or shorter than expected."""
    assert len(waits) == len(expected)
    for wait, usual in zip(waits, expected, strict=True):
        assert usual / 2 <= float(wait) <= usual * 3 / 2, waits


@pytest.mark.parametrize(("settings", "expected"), [({}, "0"), ({"RAY_enable_metrics_collection": "1"}, "1")])
def test_rays_metrics_which_ask_for_no_token_are_given_only_if_somebody_says_so(
    machine: Machine, settings: dict[str, str], expected: str
) -> None:
    machine.has("ray", f'echo "$RAY_enable_metrics_collection" > "$HERE/metrics"; {RAY}')
    machine.run(LONGHAUL_VENDOR="cpu", **settings)
    assert machine.lines("metrics") == [expected]


def test_the_waits_begin_anew_after_a_long_healthy_time(machine: Machine) -> None:
    machine.has("date", 'cat "$HERE/now"')
    machine.holds("now", "0")
    # The third one lives for ten minutes.
    machine.has("ray", f'[[ $(wc -l < "$HERE/waits") -ne 2 ]] || echo 600 > "$HERE/now"; {RAY}')
    machine.holds("waits")
    machine.run(LONGHAUL_VENDOR="cpu", MOST_WAITS="4")
    assert_about(machine.lines("waits"), [2, 4, 2, 4])


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_ray_first_and_then_the_script(machine: Machine, sent: signal.Signals) -> None:
    machine.has(
        "ray", f"trap 'echo ray ended; kill $!; exit 1' TERM; echo up; {shutil.which('sleep')} 30 & wait"
    )
    with machine.start(LONGHAUL_VENDOR="cpu") as script:
        assert script.stdout is not None
        assert select.select([script.stdout], [], [], DEADLINE_S)[0], "ray was not started"
        assert script.stdout.readline() == "up\n"
        os.kill(script.pid, sent)
        out, said = script.communicate(timeout=DEADLINE_S)
    assert (script.returncode, out) == (0, "ray ended\n")
    assert "again" not in said


@pytest.mark.parametrize("script", [SCRIPT, TOKEN])
def test_bash_can_read_it(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], timeout=DEADLINE_S, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        ["shellcheck", SCRIPT, TOKEN], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stdout == ""
