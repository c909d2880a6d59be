"""What ends the loading on one rank is told to the others: none waits for it."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch.distributed as dist

from jobs.execution.causes import is_echo
from jobs.training.health.failures import failure_of
from jobs.training.state import loading
from tests.live.attempts import Wanted, attempt
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for


def broken(*_: object) -> NoReturn:
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def saves_and_loads_on_a_broken_rank(wanted: Wanted) -> list[str]:
    """Runs on a rank: how each loading ended, in the words that its driver hears."""
    attempt(wanted)
    return [_loaded(replace(wanted, num_steps=4), step) for step in ("Landing", "fill")]


def _loaded(wanted: Wanted, step: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(loading, step, broken)
        try:
            attempt(wanted)
        except Exception as error:
            return failure_of(error, "setup", dist.get_rank()).reason
    return "loaded"


def test_a_rank_that_cannot_load_says_why_and_the_others_do_not_wait_for_it(tmp_path: Path) -> None:
    recipe = recipe_for("ddp", world_size=2)
    wanted = Wanted(name="r", recipe=recipe, num_steps=2, store=tmp_path, every_steps=2)
    others, own = run_ranks(saves_and_loads_on_a_broken_rank, wanted, num_ranks=2, tmp_path=tmp_path)
    assert all(words.startswith("RuntimeError: CUDA error: uncorrectable ECC") for words in own), own
    assert all(is_echo(words) and "rank 1" in words for words in others), others
