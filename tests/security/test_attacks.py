"""No attack gets into this tree; and those on files that start Ray get into one without the mend."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.__main__ import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
# Without Ray and in seconds. What the others attack has tests of its own in other tiers.
QUICK = ("bombs", "rays_folder_of_files", "rendezvous", "units")
MENDS = {
    "units": ("cluster/require_token.sh", "^    exit 2", "    return 0"),
    "rays_folder_of_files": (
        "cluster/longhaul-head.service",
        "^CacheDirectoryMode=0700",
        "CacheDirectoryMode=0777",
    ),
}


def attacked(tree: Path, name: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.security", str(tree), name],
        cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    if os.geteuid() != 0 and "needs root" in done.stdout:
        pytest.skip(done.stdout.strip())
    return done


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in ATTACKS]
)
def test_an_attack_gets_in_nowhere(name: str) -> None:
    done = attacked(ROOT, name)
    assert (done.returncode, done.stdout.startswith(f"{name}: held: ")) == (0, True), (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize("name", MENDS)
def test_without_the_mend_it_gets_in(name: str, tmp_path: Path) -> None:
    file, mend, instead = MENDS[name]
    for room in ("jobs", "cluster", "checkpointing", "reporting", "cluster.yaml"):
        copy = shutil.copytree if (ROOT / room).is_dir() else shutil.copy
        copy(ROOT / room, tmp_path / room)
    text = (tmp_path / file).read_text(encoding="utf-8")
    broken = re.sub(mend, instead, text, flags=re.MULTILINE)
    assert broken != text
    (tmp_path / file).write_text(broken, encoding="utf-8")
    done = attacked(tmp_path, name)
    assert (done.returncode, done.stdout.startswith(f"{name}: broken in: ")) == (1, True), done.stdout
