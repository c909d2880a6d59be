"""What ``durable.run`` refuses, each in one line, and how a loop of one's own is stopped."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

from checkpointing.format import pieces
from checkpointing.generations import manifests
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import SCHEMA
from checkpointing.log.history import Stop
from checkpointing.stores.local import LocalStore
from jobs import durable
from jobs.commandline.owner import owner_name
from jobs.durable import lease
from jobs.spec_schema.stored_spec import store_spec
from jobs.training.state import loading, restoring
from jobs.training.task.sample_order import FIRST_ORDER, NEWEST_ORDER, sample_at

NAME = "own"


def run_of(tmp_path: Path, model: object, **settings: Any) -> durable.Run:
    return durable.run(NAME, store=str(tmp_path), state={"model": model}, **settings)


def did(tmp_path: Path, model: object, num_steps: int = 2) -> None:
    with run_of(tmp_path, model) as run:
        for _ in run.steps(num_steps):
            pass


@contextmanager
def another_process() -> Iterator[str]:
    """A process that does nothing, by the name that it would have as a run's owner."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        yield owner_name(other.pid)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": {1, 2}}]}, r"state/model/a/#1/b: a set can't be saved"),
        ({"a": {("x",): 1}}, r"state/model/a: the key \('x',\) is a tuple"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, r"state/model/a: a tensor of strided, complex64"),
        ({"a": print}, r"state/model/a: a builtin_function_or_method can't be saved"),
        ([1], r"state/model: a list has no state_dict"),
    ],
)
def test_what_is_no_tensor_and_no_json_is_refused_with_its_path(
    tmp_path: Path, value: object, path: str
) -> None:
    with pytest.raises(durable.DurableError, match=path), run_of(tmp_path, value):
        pass
    assert not list(tmp_path.iterdir())


def test_a_state_that_holds_itself_is_refused(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    with pytest.raises(durable.DurableError, match="holds itself"), run_of(tmp_path, ring):
        pass


@pytest.mark.parametrize(
    ("loss", "said"),
    [(None, "2: 0"), (torch.tensor(0.5), "2, loss 0.5000: 0"), (nan, "2, loss not finite: 0")],
)
def test_of_a_loss_that_the_loop_does_not_record_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: float | None, said: str
) -> None:
    with run_of(tmp_path, nn.Linear(4, 2)) as run:
        for _ in run.steps(2):
            if loss is not None:
                run.record(loss=loss)
    (finished,) = [line for line in capsys.readouterr().err.splitlines() if "finished" in line]
    assert f"finished at step {said}" in finished


def test_a_model_of_another_shape_is_refused_and_unchanged(tmp_path: Path) -> None:
    did(tmp_path, nn.Linear(4, 2))
    other = nn.Linear(4, 3)
    before = other.weight.detach().clone()

    with pytest.raises(durable.DurableError) as refused, run_of(tmp_path, other):
        pass

    assert (
        str(refused.value)
        == "own: state/model/weight: is 3x4 of float32, but the checkpoint has 2x4 of float32"
    )
    assert torch.equal(other.weight, before)


def test_starts_that_are_refused_say_nothing_against_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads that end in a crash make poison of it; these do not."""
    for num_steps in (1, 2):
        did(tmp_path, nn.Linear(4, 2), num_steps)
    for _ in range(3):
        with pytest.raises(durable.DurableError, match="is 3x4 of float32, but the checkpoint"):
            did(tmp_path, nn.Linear(4, 3))
        with monkeypatch.context() as earlier:
            earlier.setattr(manifests, "IN_PIECES", SCHEMA - 1)
            with pytest.raises(durable.DurableError, match="go on with the version that saved it"):
                did(tmp_path, nn.Linear(4, 2))
    view = Repository(LocalStore(tmp_path), NAME).refresh()
    assert [(one.step, one.quarantined) for one in view.generations] == [(1, None), (2, None)]
    assert view.loads == {}


@pytest.mark.parametrize("step", ["with_parts", "fill", "Landing"])
def test_whatever_ends_the_loading_is_raised_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
    did(tmp_path, nn.Linear(4, 2))

    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(loading, step, fail)
    with pytest.raises(ZeroDivisionError, match="by zero"):
        did(tmp_path, nn.Linear(4, 2))


def test_a_state_that_lacks_an_object_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with durable.run(NAME, store=str(tmp_path), state={"model": nn.Linear(2, 2), "seen": {"n": 1}}) as run:
        for _ in run.steps(1):
            pass
    with pytest.raises(durable.DurableError, match="state/seen: is in the checkpoint"):
        did(tmp_path, nn.Linear(2, 2))


def test_every_kind_of_plain_value_comes_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    values = {
        "numbers": (1, 2.5, float("inf"), -(2**200)), 7: [None, True, "ü", ()],
        "tensors": {"a/b": torch.arange(3), "a": {"b": torch.tensor(1.5, dtype=torch.float64)}},
    }  # fmt: skip
    state = {"values": dict(values), "generator": generator}
    with durable.run(NAME, store=str(tmp_path), state=state) as run:
        for _ in run.steps(1):
            first = torch.rand(3, generator=generator)
    rest = torch.rand(3, generator=generator)
    again: dict[Any, Any] = {}
    other = torch.Generator()

    with durable.run(NAME, store=str(tmp_path), state={"values": again, "generator": other}) as run:
        assert run.step == 1
        drawn = torch.rand(3, generator=other)

    tensors, saved = again.pop("tensors"), values.pop("tensors")
    assert again == values
    assert torch.equal(tensors["a/b"], saved["a/b"]) and torch.equal(tensors["a"]["b"], saved["a"]["b"])
    assert torch.equal(drawn, rest) and not torch.equal(drawn, first)


def test_calls_in_the_wrong_order_say_what_is_wrong(tmp_path: Path) -> None:
    run = run_of(tmp_path, nn.Linear(2, 2))
    with pytest.raises(
        durable.DurableError, match=r"run.save\(\) saves at the end of a step .* has not begun"
    ):
        run.save()
    with run:
        with pytest.raises(
            durable.DurableError, match=r"run.record\(...\) is for the steps .* no step has begun"
        ):
            run.record(loss=1.0)
        for _ in run.steps(1):
            with pytest.raises(durable.DurableError, match="is called once"):
                next(run.steps(1))
            with pytest.raises(durable.DurableError, match="expected loss, val_loss"):
                run.record(lost=1.0)
    with pytest.raises(durable.DurableError, match="has ended"):
        run.save()


def test_a_loop_that_is_left_in_the_middle_of_a_step_says_so_and_saves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(durable.DurableError, match=r"left in the middle of step 2, .* run\.stop"),
        run_of(tmp_path, nn.Linear(2, 2)) as run,
    ):
        for step in run.steps(5):
            if step == 1:
                break
    assert not Repository(LocalStore(tmp_path), NAME).refresh().generations


def test_an_error_in_a_step_is_the_scripts_own_and_the_next_start_goes_on(tmp_path: Path) -> None:
    seen = {"steps": 0}
    with (
        pytest.raises(ZeroDivisionError),
        run_of(tmp_path, seen, checkpoint={"every_steps": 2, "on_busy": "wait"}) as run,
    ):
        for step in run.steps(9):
            seen["steps"] += 1 // (step != 5)
    seen = {"steps": 0}

    with run_of(tmp_path, seen) as run:
        assert seen["steps"] == run.step >= 2
        for _ in run.steps(9):
            seen["steps"] += 1

    assert run.is_finished and seen["steps"] == 9


def test_a_second_process_of_the_same_name_is_refused_and_takes_over_once_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "OWNER_ENDS_S", 0.0)
    with another_process() as owner:
        Repository(LocalStore(tmp_path), NAME).take_over(owner)

        with pytest.raises(durable.DurableError, match="own: another process is at work on it"):
            did(tmp_path, nn.Linear(2, 2))

    did(tmp_path, nn.Linear(2, 2))


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(durable.DurableError) as refused, run_of(tmp_path / "file", nn.Linear(2, 2)):
        pass
    assert str(refused.value).startswith("own: ") and "\n" not in str(refused.value)


def test_a_run_of_train_is_not_taken_over(tmp_path: Path) -> None:
    repository = Repository(LocalStore(tmp_path), NAME)
    repository.take_over("somebody")
    store_spec(repository.store, NAME, {"model": "llama-tiny"})
    with pytest.raises(durable.DurableError, match="is a run of `longhaul train`"):
        did(tmp_path, nn.Linear(2, 2))


def test_an_unknown_key_of_the_checkpoint_section_is_named(tmp_path: Path) -> None:
    with pytest.raises(durable.DurableError, match=r"durable\.run: checkpoint\.every_step: .*did you mean"):
        run_of(tmp_path, {}, checkpoint={"every_step": 5})


def test_longhaul_stop_ends_the_loop_after_a_step_and_the_next_start_goes_on(tmp_path: Path) -> None:
    seen = {"steps": 0}
    with run_of(tmp_path, seen) as run:
        for step in run.steps(10**9):
            seen["steps"] += 1
            if step == 3:
                Repository(LocalStore(tmp_path), NAME).refresh()
                Repository(LocalStore(tmp_path), NAME).append(Stop())
    assert run.is_stopped and not run.is_finished and run.step == seen["steps"] > 3
    view = Repository(LocalStore(tmp_path), NAME).refresh()
    assert view.stopped_step == run.step
    stopped_at, seen = run.step, {"steps": 0}

    with run_of(tmp_path, seen) as run:
        assert run.step == seen["steps"] == stopped_at


def test_batches_give_every_sample_once_an_epoch_over_ranks_and_restarts() -> None:
    ranks = [iter(durable.batches(24, 2, seed=3, rank=rank, world_size=3)) for rank in range(3)]
    epoch = [sample for _ in range(4) for rank in ranks for sample in next(rank)]
    assert sorted(epoch) == list(range(24))
    later = iter(durable.batches(24, 2, seed=3, step=3, rank=1, world_size=3))
    assert next(later) == epoch[3 * 6 + 2 : 3 * 6 + 4]


def test_a_run_that_began_with_an_older_order_of_samples_keeps_it_and_a_fresh_one_has_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(restoring, "NEWEST_ORDER", FIRST_ORDER)
        did(tmp_path, {"a": 1}, num_steps=1)
    found = []
    for fresh in (False, True):
        with run_of(tmp_path, {"a": 1}, fresh=fresh) as run:
            found.append(run.batches(12, 12, seed=7).of_step(0))
            for _ in run.steps(2):
                pass
        # The order lies in the new checkpoint too.
        with run_of(tmp_path, {"a": 1}) as run:
            assert run.batches(12, 12, seed=7).of_step(0) == found[-1]
    assert found == [
        [sample_at(place, num_samples=12, seed=7, order=order) for place in range(12)]
        for order in (FIRST_ORDER, NEWEST_ORDER)
    ]


def test_a_checkpoint_in_an_order_of_a_later_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(restoring, "NEWEST_ORDER", 99)
        did(tmp_path, {"a": 1}, num_steps=1)
    with pytest.raises(
        durable.DurableError, match="are in the order 99, but this version knows 1, 2, 3, 4; go on"
    ):
        did(tmp_path, {"a": 1})
