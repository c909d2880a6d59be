"""Attack 9, in the store: one object that nobody can read ends a whole report, or a whole ``pull``."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.security.attack import Done, GotIn, NotTried, own, product
from tests.security.bombs import damage

_SWEEP = """\
name: s
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [32], micro_batch: [1]}
measure: {steps: 4, warmup: 1}
repeats: 2
"""


def attack(tree: Path) -> str:
    with product(tree) as its:
        spec, store = its.home / "spec.yaml", its.home / "store"
        spec.write_text(_SWEEP, encoding="utf-8")
        its.run("sweep", spec, "--executor", "inline", "--store", store)
        results = sorted(store.glob("sweeps/s/runs/*/result.json"))
        for name in ("good", "poisoned"):
            done = its.run("report", "--store", store, "--name", name)
            if len(results) != 2 or done.code != 0:
                raise NotTried(f"no report to attack: {done.last_line}")
        got_in = []
        for what, poison in _POISONS.items():
            poisoned = its.home / what.replace(" ", "-")
            shutil.copytree(store, poisoned)
            poison(poisoned / results[0].relative_to(store))
            manifests = [*(poisoned / "reports/poisoned").glob("manifest*")]
            for manifest in manifests:
                poison(manifest)
            own(poisoned, its.user)
            done = its.run("report", "--store", poisoned, "--name", "good", is_bounded=True)
            if how := _harm(done, poisoned / "reports/good/metrics.csv"):
                got_in.append(f"{what}: report: {how}")
            done = its.run("pull", poisoned, its.home / f"pulled-{what.replace(' ', '-')}", is_bounded=True)
            pulled = its.home / f"pulled-{what.replace(' ', '-')}"
            if how := _harm(done, *pulled.glob("good/metrics.csv"), is_whole=False):
                got_in.append(f"{what}: pull: {how}")
        if got_in:
            raise GotIn("; ".join(got_in))
        return f"{len(_POISONS)} poisons of a result and of a report cost no more than that one"


def _harm(done: Done, *tables: Path, is_whole: bool = True) -> str | None:
    """To what was good."""
    if how := damage(done):
        return how
    if is_whole and done.code != 0:
        return f"no report: {done.last_line[:100]}"
    rows = [line for table in tables for line in table.read_text(encoding="utf-8").splitlines() if line]
    return None if len(rows) >= 2 else f"the good one is missing: {done.last_line[:100]}"


def _nest(path: Path) -> None:
    path.write_text("[" * 200_000, encoding="utf-8")


def _enlarge(path: Path) -> None:
    """Every number becomes one that no float holds."""

    def enlarged(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: enlarged(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [enlarged(inner) for inner in value]
        return 10**400 if isinstance(value, int | float) and not isinstance(value, bool) else value

    body = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(enlarged(body)), encoding="utf-8")


def _make_endless(path: Path) -> None:
    os.truncate(path, 40 << 30)


_POISONS: dict[str, Callable[[Path], None]] = {
    "200,000 brackets": _nest,
    "numbers of 401 digits": _enlarge,
    "a sparse file of 40 GB": _make_endless,
}
