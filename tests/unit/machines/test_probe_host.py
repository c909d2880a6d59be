"""What a node tells of itself without its devices, and that asking leaves nothing behind."""

from pathlib import Path

import pytest

from cluster.probe.host import kernel_driver, measure_disk, versions, visible_devices
from cluster.probe.node_facts import NodePlatform


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    facts = measure_disk(tmp_path)
    assert facts.folder == str(tmp_path)
    assert facts.write_bytes_per_s > 0 and facts.fsync_s > 0 and facts.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_of_the_node_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "disk").mkdir()
    assert measure_disk(Path("~/disk")).folder == str(tmp_path / "disk")


def test_a_disk_is_not_measured_by_a_file_that_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "0" * 2 * num_bytes)
    theirs = tmp_path / f".longhaul-doctor-{'0' * 16}"
    theirs.write_text("theirs")
    with pytest.raises(FileExistsError):
        measure_disk(tmp_path)
    assert theirs.read_text() == "theirs"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert measure_disk(tmp_path / "not" / "there").folder == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("platform", "file", "text", "version"),
    [
        (
            "cuda",
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\n"
            "GCC version:  gcc version 12.3.0\n",
            "580.65.06",
        ),
        ("cuda", "proc/driver/nvidia/version", "NVRM version: unknown\n", None),
        ("rocm", "sys/module/amdgpu/version", "6.12.12\n", "6.12.12"),
        ("rocm", "proc/driver/nvidia/version", "580.65.06", None),
        ("cpu", "proc/driver/nvidia/version", "580.65.06", None),
    ],
)
def test_the_driver_is_what_the_kernel_module_of_the_platform_says(
    platform: NodePlatform, file: str, text: str, version: str | None, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert kernel_driver(platform, root=tmp_path) == version


def test_variables_that_hide_devices_are_told_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("SECRET", "x")
    assert visible_devices() == {"HIP_VISIBLE_DEVICES": "0,1"}


def test_versions_name_what_must_be_equal_everywhere() -> None:
    assert versions().keys() == {"python", "ray", "torch", "deepspeed"}
