"""What may change between two starts of a run, and that what may not is said with a way out."""

from pathlib import Path
from typing import Any

import pytest

from jobs.spec_schema.compatibility import refusals
from jobs.spec_schema.run_spec import RunSpec
from tests.conftest import Golden

TRIAL = """
name: trial
model: llama-tiny
world_size: 2
grad_accum: 2
steps: 40
data: {samples: 64}
optimizer: {schedule: cosine, decay_steps: 40}
"""
TOKENS = {"kind": "tokens", "path": "/data/a", "tokenizer": "bytes", "samples": 90, "digest": "1f"}
PLACE = "s3://bucket/store/runs/trial"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "trial.yaml"
    found.write_text(TRIAL)
    return found


def described(path: Path, *settings: str) -> dict[str, Any]:
    return RunSpec.load(path, settings).model_dump(mode="json")


def refused(path: Path, *settings: str, stored: dict[str, Any] | None = None) -> list[str]:
    before = described(path) if stored is None else stored
    return refusals(before, described(path, *settings), described(path), place=PLACE)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("strategy=zero2",),
        ("world_size=4", "grad_accum=1"),
        ("world_size=1", "micro_batch=4", "grad_accum=1"),
        ("world_size={min: 1, max: 2}",),
        ("steps=80",),
        ("steps=", "epochs=3"),
        ("checkpoint.every_s=5", "checkpoint.retention.last=3"),
        ("eval={every_steps: 4, samples: 8}",),
        ("recovery.losses=3", "limits.schedule_timeout_s=9", "guard.spike_ratio="),
        ("record.tensorboard=false", "environment={A: b}", "group=other", "spread=true"),
        ("store=elsewhere",),
    ],
    ids=" ".join,
)
def test_how_and_how_long_it_is_trained_may_change(path: Path, settings: tuple[str, ...]) -> None:
    assert refused(path, *settings) == []


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("model=qwen-tiny", "model"),
        ("seed=1", "seed"),
        ("precision=bf16", "precision"),
        ("seq_len=32", "seq_len"),
        ("weights=/w", "weights"),
        ("data.samples=65", "data.samples"),
        ("optimizer.beta2=0.9", "optimizer.beta2"),
        ("optimizer.lr=1e-4", "optimizer.lr"),
        ("optimizer.decay_steps=80", "optimizer.decay_steps"),
        ("grad_accum=4", "world_size x micro_batch x grad_accum"),
        ("world_size={min: 1, max: 4}", "world_size x micro_batch x grad_accum"),
    ],
)
def test_what_would_make_it_another_run_is_one_line_that_begins_with_its_key(
    path: Path, setting: str, key: str
) -> None:
    line, other_ways = refused(path, setting)
    assert line.startswith(f"{key}: the run trial has ")
    assert "--fresh" in other_ways
    assert other_ways.endswith(f"(--resume {PLACE})")


def test_every_change_has_a_line(path: Path, golden: Golden) -> None:
    settings = ("seed=7", "optimizer.lr=0.001", "weights=/w", "optimizer.decay_steps=80", "micro_batch=2")
    golden("run_changes.txt", "\n".join(refused(path, *settings, "model=qwen-tiny")) + "\n")


def test_a_spec_that_is_too_old_to_have_a_key_had_its_default(path: Path) -> None:
    old = described(path)
    for key in ("weights", "precision", "guard", "elastic"):
        del old[key]
    del old["optimizer"]["min_lr_ratio"]
    assert refused(path, stored=old) == []
    changed = refused(path, "optimizer.min_lr_ratio=0.5", "weights=/w", stored=old)
    assert [line.partition(":")[0] for line in changed[:-1]] == ["optimizer.min_lr_ratio", "weights"]


def of_tokens(path: Path, *settings: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    return described(path, *settings) | {"data": TOKENS | (data or {})}


def tokens_refused(path: Path, wanted: dict[str, Any]) -> list[str]:
    return refusals(of_tokens(path), wanted, described(path), place=PLACE)


def test_tokens_may_move_but_must_stay_the_same(path: Path) -> None:
    elsewhere = {"path": "s3://b/a", "tokenizer": None, "local": {"dir": "/nvme", "gib": 9.0}}
    assert tokens_refused(path, of_tokens(path, data=elsewhere)) == []
    line, _ = tokens_refused(path, of_tokens(path, data={"digest": "2e"}))
    assert line == "data.digest: the run trial has 1f, this spec 2e; put the tokens back at /data/a"


def test_of_tokens_what_is_held_out_stays_held_out(path: Path) -> None:
    line, _ = tokens_refused(path, of_tokens(path, "eval.samples=80", data={"samples": 74}))
    assert line.startswith("eval.samples: the run trial has 64, this spec 80; ")


def test_what_a_start_does_not_know_is_not_compared(path: Path) -> None:
    known = {key: value for key, value in described(path).items() if key != "data"}
    stored = described(path, "data.samples=7")
    assert refusals(stored, known, described(path), place=PLACE) == []
