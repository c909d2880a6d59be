"""The memory that a container has left, from the files of both versions of cgroups."""

from pathlib import Path

import pytest

from checkpointing.saving.memory_limit import memory_left
from checkpointing.saving.memory_tier import MemoryTier

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")
NO_LIMIT_V1 = str(2**63 - 4096)


def machine(root: Path, cgroups: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroups)
    return root


def limited(root: Path, folder: str, names: tuple[str, str, str], limit: str, used: int, cache: int) -> None:
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / names[0]).write_text(f"{limit}\n")
    (place / names[1]).write_text(f"{used}\n")
    (place / "memory.stat").write_text(f"inactive_anon 7\n{names[2]} {cache}\n")


@pytest.mark.parametrize(
    ("cgroups", "top", "names", "without"),
    [
        ("0::/pods/one\n", "", V2, "max"),
        ("5:cpu:/\n3:hugetlb,memory:/pods/one\n0::/\n", "memory/", V1, NO_LIMIT_V1),
    ],
    ids=["version 2", "version 1"],
)
def test_the_tightest_limit_on_the_way_counts_and_caches_are_free(
    tmp_path: Path, cgroups: str, top: str, names: tuple[str, str, str], without: str
) -> None:
    root = machine(tmp_path, cgroups)
    limited(root, f"{top}pods/one", names, without, used=50, cache=0)
    limited(root, f"{top}pods", names, "1000", used=700, cache=100)
    assert memory_left(root) == 400
    limited(root, f"{top}pods/one", names, "90", used=50, cache=10)
    assert memory_left(root) == 50
    limited(root, f"{top}pods/one", names, "40", used=50, cache=0)
    assert memory_left(root) == 0


def test_where_the_path_is_the_hosts_the_top_is_the_containers(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/docker/of-the-host\n")
    limited(root, "", V2, "1000", used=900, cache=0)
    assert memory_left(root) == 100


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_no_limit_is_none(tmp_path: Path, limit: str) -> None:
    assert memory_left(tmp_path) is None
    root = machine(tmp_path, "0::/\n")
    assert memory_left(root) is None
    limited(root, "", V2, limit, used=900, cache=0)
    assert memory_left(root) is None


def test_there_is_no_more_room_than_the_container_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = MemoryTier(tmp_path, "r")
    monkeypatch.setattr("checkpointing.saving.memory_tier.memory_left", lambda: 123)
    assert tier.free_bytes() == 123
    monkeypatch.setattr("checkpointing.saving.memory_tier.memory_left", lambda: None)
    assert tier.free_bytes() > 123
