"""Which code ran, as a result can tell it afterwards."""

import re
from pathlib import Path

from jobs.sweeps.rows.source_version import commit_of, source_digest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


def checkout(root: Path, head: str, **files: str) -> Path:
    git = root / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(head + "\n")
    for name, text in files.items():
        (git / name.replace("_", "-")).write_text(text)
    return root


def test_a_branchs_commit_is_read(tmp_path: Path) -> None:
    root = checkout(tmp_path, "ref: refs/heads/main")
    (root / ".git" / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    assert commit_of(root) == COMMIT


def test_a_branch_that_git_has_packed_is_read(tmp_path: Path) -> None:
    packed = f"# pack-refs with: peeled\n{OTHER} refs/heads/main-2\n{COMMIT} refs/heads/main\n^{OTHER}\n"
    assert commit_of(checkout(tmp_path, "ref: refs/heads/main", packed_refs=packed)) == COMMIT


def test_a_commit_without_a_branch_is_read(tmp_path: Path) -> None:
    assert commit_of(checkout(tmp_path, COMMIT)) == COMMIT


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    assert commit_of(checkout(tmp_path, "ref: refs/heads/main")) is None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".git").write_text("gitdir: /somewhere\n")
    assert commit_of(tmp_path / "elsewhere") is None


def test_a_submitted_tree_without_git_still_has_a_digest() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", source_digest())
