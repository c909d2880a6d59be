"""``train`` makes a durable run of transformers' ``Trainer``, in place of the Trainer's own checkpoints.

The Trainer resumes from a folder alone. It gets one with the restored weights, for as long as it trains.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from jobs.durable.errors import DurableError
from jobs.durable.run import Run, run

# What the Trainer has logged is a part of its state; older lines are in the run's records.
_MOST_LOGGED = 1000
_Event = Literal["evaluate", "epoch end", "log"]


def train(trainer: Trainer, name: str, **settings: Any) -> Run:
    """Does what ``trainer.train()`` does, as the run ``name``; ``settings`` are those of ``durable.run``.

    Resumes the run if it has a checkpoint. Returns the run, which has ended.
    """
    _refuse_what_cannot_be_resumed(trainer, name)
    progress = _Progress(trainer)
    with run(name, state={"model": trainer.model, "trainer": progress}, **settings) as own:
        callback = _DurableCallback(trainer, own)
        # The last of all callbacks sees what the others have asked for.
        trainer.add_callback(callback)
        try:
            with _folder(trainer, progress) as folder:
                trainer.train(resume_from_checkpoint=folder)
        except _NothingToDo:
            pass
        finally:
            trainer.remove_callback(callback)
    return own


def _refuse_what_cannot_be_resumed(trainer: Trainer, name: str) -> None:
    args = trainer.args
    problems = {
        "save_strategy: expected 'no', as the run is saved in place of the Trainer": args.save_strategy
        != "no",
        "model_init: expected a model": trainer.model_init is not None,
        "the model is no PreTrainedModel; use durable.run": not isinstance(trainer.model, PreTrainedModel),
        "deepspeed and fsdp are not there yet; use durable.run": bool(
            trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise DurableError(f"{name}: {problem}")


class _NothingToDo(Exception):
    """The run has no step left, or was asked to stop before the first one."""


class _Progress:
    """The Trainer's own state, as the Trainer writes it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        state = {field.name: getattr(trainer.state, field.name) for field in fields(trainer.state)}
        state["log_history"] = state["log_history"][-_MOST_LOGGED:]
        state["stateful_callbacks"] = {
            type(one).__name__: one.state()
            for one in (*trainer.callback_handler.callbacks, trainer.control)
            if isinstance(one, ExportableState)
        }
        plain: dict[str, Any] = json.loads(json.dumps(state))
        return plain

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state


@contextmanager
def _folder(trainer: Trainer, progress: _Progress) -> Iterator[str | None]:
    """The folder to resume from, in the Trainer's own; None if the run is new."""
    if progress.restored is None:
        yield None
        return
    model, home = trainer.model, trainer.args.output_dir
    assert isinstance(model, PreTrainedModel) and home is not None
    Path(home).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="longhaul-", dir=home) as folder:
        # The Trainer insists on weights in the folder; they are the ones that the model has already.
        model.save_pretrained(folder)
        (Path(folder) / "trainer_state.json").write_text(json.dumps(progress.restored), encoding="utf-8")
        yield folder


class _DurableCallback(TrainerCallback):
    """Ends a step of the run after the last thing that the Trainer does in it: that may draw random numbers.

    A step that is evaluated ends after the evaluation, the last one of an epoch after the epoch, one that is
    logged after the line: it has the step's loss.
    """

    def __init__(self, trainer: Trainer, own: Run) -> None:
        self._trainer = trainer
        self._run = own
        self._last_event: _Event | None = None
        self._values: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        self._run.bind("optimizer", parts["optimizer"])
        self._run.bind("schedule", parts["lr_scheduler"])
        if (scaler := self._trainer.accelerator.scaler) is not None:
            self._run.bind("scaler", scaler)
        if not self._run.begin(state.max_steps):
            raise _NothingToDo

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        # The epoch's order of samples may be drawn next.
        self._run.restore_random()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        # In the middle of an epoch the Trainer has drawn numbers to find its place; the run drew them before.
        if state.epoch % 1 != 0:
            self._run.restore_random()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        self._values = {}
        self._await("epoch end" if state.epoch % 1 == 0 else _last_event(control), state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if self._last_event == "epoch end":
            event = _last_event(control)
            # The Trainer logs a step once.
            self._await(None if event == "log" and "loss" in self._values else event, state, control)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        logs = parts["logs"]
        names = {
            "loss": "loss",
            "grad_norm": "grad_norm",
            "learning_rate": "learning_rate",
            "eval_loss": "val_loss",
        }
        self._values |= {names[name]: value for name, value in logs.items() if name in names}
        self._ended("log", state, control)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        self._ended("evaluate", state, control)

    def _await(self, event: _Event | None, state: TrainerState, control: TrainerControl) -> None:
        self._last_event = event
        if event is None:
            self._end_step(state, control)

    def _ended(self, event: _Event, state: TrainerState, control: TrainerControl) -> None:
        if self._last_event == event:
            self._last_event = None
            self._end_step(state, control)

    def _end_step(self, state: TrainerState, control: TrainerControl) -> None:
        self._run.record(epoch=ceil(state.epoch), **self._values)
        if not self._run.end_step():
            control.should_training_stop = True


def _last_event(control: TrainerControl) -> _Event | None:
    """What the Trainer will do last before it goes on; None if nothing."""
    if control.should_evaluate:
        return "evaluate"
    return "log" if control.should_log else None
