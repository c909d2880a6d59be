"""The forecasts of memory that ``docs/settings.md`` shows are those that a dry run shows now."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli.__main__ import main
from tests.house import ROOT

PAGE = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
GIB = 2**30
SPEC = {"name": "shown", "models": ["llama-3.1-8b"], "groups": ["nvidia"]}
AXES = {"strategy": ["fsdp"], "world_size": [8], "seq_len": [8192], "precision": ["bf16"]}
# As many nodes as the largest cells need.
CLUSTER = re.sub(r"max_workers: \d+", "max_workers: 8", (ROOT / "cluster.yaml").read_text(encoding="utf-8"))


def test_what_settings_save_is_what_a_dry_run_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("activation_checkpointing", "cross_entropy", "compile")
    values = (["none", "selective", "full"], ["whole", "chunked"], ["none", "block"])
    forecast = _forecast(keys, {"axes": AXES | dict(zip(keys, values, strict=True))}, tmp_path, capsys)

    shown = {}
    for kept, loss, plain, compiled in re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (\d+) \|$", PAGE, re.M
    ):
        shown |= {(kept, loss, "none"): int(plain), (kept, loss, "block"): int(compiled)}
    assert shown == forecast


def test_what_sharding_and_offloading_save_is_what_a_dry_run_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = {"world_size": [32], "activation_checkpointing": ["full"], "cross_entropy": ["chunked"]}
    axes = AXES | last | {"shard_within": [None, 8], "offload": ["none", "optimizer"]}
    spec = {"axes": axes, "include": [{"strategy": "zero3", "shard_within": [None]}]}
    forecast = _forecast(("strategy", "shard_within", "offload"), spec, tmp_path, capsys)

    rows = re.findall(r"^\| `(\w+)` \| (all|\d+) \| `(\w+)` \| (\d+) \|$", PAGE, re.M)
    shown = {
        (strategy, None if within == "all" else int(within), offload): int(gib)
        for strategy, within, offload, gib in rows
    }
    assert shown == forecast


def _forecast(
    keys: tuple[str, ...], spec: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[tuple[Any, ...], int]:
    """A device's memory in GiB, by the values of ``keys``."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC | spec), encoding="utf-8")
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    files = [str(folder / "spec.yaml"), "--cluster", str(folder / "cluster.yaml")]
    assert main(["sweep", *files, "--dry-run", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    return {tuple(cell[key] for key in keys): round(cell["predicted_memory_bytes"] / GIB) for cell in cells}
