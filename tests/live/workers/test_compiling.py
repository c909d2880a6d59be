"""Compiled blocks compute what the others do; they are compiled once for all, and safely kept."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch._inductor import config as inductor

from checkpointing.errors import Unfit
from jobs.training.benchmark import measure
from jobs.training.models import compiling
from jobs.training.task.context import Context
from jobs.training.task.job import Job, Precision, Recipe, Strategy, Window
from jobs.training.task.settings import Checkpointing
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, Course, recipe_for, train

RANKS, STEPS = 2, 3
FAR = {"fp32": 1e-5, "bf16": 1e-3}
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "zero1", "zero2")
ALL = [(strategy, precision, mode) for strategy in STRATEGIES for precision in get_args(Precision)
       for mode in get_args(Checkpointing)]  # fmt: skip
FEW: list[tuple[Strategy, Precision, Checkpointing]] = [("fsdp", "fp32", "full")]


def train_both(recipes: list[Recipe]) -> dict[Recipe, tuple[Course, Course, int]]:
    """Runs on a rank. Of each recipe: eager, compiled, and how many graphs that took."""
    found = {}
    for recipe in recipes:
        eager, before = train(recipe, STEPS), compiling.num_compiled()
        compiled = train(replace(recipe, compile="block"), STEPS)
        found[recipe] = eager, compiled, compiling.num_compiled() - before
    return found


@pytest.mark.parametrize("cases", [FEW, pytest.param(ALL, marks=pytest.mark.soak)], ids=["few", "all"])
def test_compiled_blocks_lose_as_others_do_and_are_one_graph(
    cases: list[tuple[Strategy, Precision, Checkpointing]], tmp_path: Path
) -> None:
    recipes = [
        replace(recipe_for(strategy, world_size=RANKS, precision=precision), activation_checkpointing=mode)
        for strategy, precision, mode in cases
    ]
    for rank in run_ranks(train_both, recipes, num_ranks=RANKS, tmp_path=tmp_path, deadline_s=1200):
        for recipe, (eager, compiled, num_graphs) in rank.items():
            far = FAR[recipe.precision]
            assert compiled.losses == pytest.approx(eager.losses, rel=far, abs=0), recipe
            assert compiled.grad_norms == pytest.approx(eager.grad_norms, rel=5 * far, abs=0), recipe
            assert num_graphs == 1, recipe


def test_a_window_that_compiles_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(recipe_for("ddp", world_size=1), compile="block")
    job = Job(run_id="a", recipe=recipe, window=Window(steps=2, warmup=1), vendor="cpu")
    context = Context(rank=0, world_size=1, local_rank=0, device=CPU)
    time_steps = measure._RankRun._time_steps

    def compile_and_time_steps(run: Any, warmup: Any) -> Any:
        compiling.compiled(lambda numbers: numbers.sin() * 2)(torch.ones(3))
        return time_steps(run, warmup)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        quiet = measure.measure(job, context)
        monkeypatch.setattr(measure._RankRun, "_time_steps", compile_and_time_steps)
        disturbed = measure.measure(job, context)
    finally:
        dist.destroy_process_group()
    assert quiet is not None and disturbed is not None
    assert (quiet.recompilations, disturbed.recompilations) == (0, 1)


def test_nothing_is_left_in_the_common_folder_for_temporary_files(tmp_path: Path) -> None:
    """What another user puts there first must never be compiled or loaded."""
    common, home = tmp_path / "common", tmp_path / "home"
    common.mkdir()
    home.mkdir()
    code = (
        "import torch; from jobs.training.models import compiling; compiling.prepare(torch.device('cpu')); "
        "compiling.compiled(lambda x: (x * 2 + 1).sin())(torch.ones(8))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"TMPDIR": str(common), "HOME": str(home)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)
    assert [path for path in common.rglob("*") if path.is_file()] == []
    assert any(path.suffix == ".so" for path in home.rglob("*"))


def test_without_a_compiler_one_line_says_so() -> None:
    refused = pytest.raises(Unfit, match=r"^compile: block can't be had here: no C\+\+ compiler was found")
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), refused:
        compiling.prepare(CPU)


def test_what_is_compiled_is_kept_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiling.prepare(CPU)
    folder = tmp_path / ".cache" / "longhaul-inductor"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_another_could_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "longhaul-inductor").symlink_to(tmp_path / "theirs")
    with pytest.raises(Unfit, match=r"^compile: block needs a folder of its own"):
        compiling.prepare(CPU)


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", without_home)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with pytest.raises(Unfit, match=r"^compile: block needs a folder of its own \(Could not determine home"):
        compiling.prepare(CPU)


def test_a_folder_that_the_user_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiling.prepare(CPU)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
