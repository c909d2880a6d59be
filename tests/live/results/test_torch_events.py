"""TensorBoard event files as torch's own writer writes them: another one than ours."""

from pathlib import Path

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from reporting.importers.mapping import shipped
from reporting.importers.reading import Import, read_all


def imported(folder: Path) -> Import:
    return read_all([folder], shipped(), name="trial", group=None, vendor="nvidia")


@pytest.mark.parametrize("new_style", [False, True], ids=["simple values", "tensors"])
def test_a_training_that_torch_logged_is_a_row(tmp_path: Path, new_style: bool) -> None:
    with SummaryWriter(str(tmp_path / "qwen25_7b_test_fp8")) as writer:
        for step in range(100):
            seconds = 40.0 if step == 0 else 1.25
            writer.add_scalar("train_step_timing in s", seconds, step, new_style=new_style)
            writer.add_scalar("reduced_train_loss", 10 - step / 20, step, new_style=new_style)
            writer.add_scalar("lr", 3e-4, step, new_style=new_style)
        writer.add_histogram("weights", torch.linspace(-1, 1, 100), 0)
        writer.add_text("recipe", "pretrain")
        writer.add_image("noise", torch.rand(3, 256, 256), 0)
    found = imported(tmp_path)
    (row,) = found.rows
    assert (row.model, row.precision, row.vendor) == ("qwen-2.5-7b", "fp8", "nvidia")
    assert (row.steps, row.warmup_steps, row.mean_step_time_sec) == (90, 10, 1.25)
    assert row.loss_first == pytest.approx(9.5) and row.loss_last == pytest.approx(5.05)
    assert found.read[0].not_mapped == ("lr",)
    assert found.unread == ()


def test_a_restarted_training_is_one_row_of_the_steps_that_count(tmp_path: Path) -> None:
    for attempt, (start, end) in enumerate([(0, 60), (50, 100)]):
        with SummaryWriter(str(tmp_path), filename_suffix=f".{attempt}") as writer:
            for step in range(start, end):
                writer.add_scalar("step_time", 1.0 + attempt, step)
    (row,) = imported(tmp_path).rows
    assert row.steps == 90
    assert row.window_sec == pytest.approx(40 * 1.0 + 50 * 2.0)
