"""``durable.run``: a script's steps become a run that is saved, resumed, stopped and recorded."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

import torch

from cluster.probe.host import version_of
from cluster.probe.versions import too_old
from jobs.commandline.usage_error import SpecError
from jobs.durable.batches import Batches, batches
from jobs.durable.errors import DurableError, in_one_line
from jobs.durable.opening import Arguments, open_session
from jobs.durable.session import Session
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.own_loop import OwnLoop
from jobs.training.task.stop_request import StopRequest

_VALUES = ("loss", "val_loss", "learning_rate", "grad_norm", "epoch")
_Place = Literal["before", "open", "between", "in a step", "done", "closed"]
_WHEN: Mapping[_Place, str] = {
    "before": "the `with` block has not begun",
    "open": "no step has begun",
    "between": "the steps have begun",
    "in a step": "a step is under way",
    "done": "the last step has ended",
    "closed": "the `with` block has ended",
}


class Run:
    """A run, as a context. ``step`` counts finished steps, also those before a restart.

    Every rank makes the same calls. After the steps: ``is_finished``, or ``is_stopped`` if the run was asked
    to stop; ``problem`` says why the end could not be saved, on rank 0, else None. ``generation`` is the
    checkpoint that was loaded, later the newest one.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.name = arguments.spec.name
        self._arguments = arguments
        self._place: _Place = "before"
        self._session: Session | None = None
        self._stop_signals = StopSignals()
        self._values: dict[str, SupportsFloat | None] = {}
        self._is_save_asked = False

    def __enter__(self) -> Self:
        self._demand("before", what="a run has one `with` block")
        # Python lets only the main thread take signals; Ray Train calls a script in another one.
        is_main = threading.current_thread() is threading.main_thread()
        self._signals: Any = self._stop_signals if is_main else nullcontext()
        self._signals.__enter__()
        try:
            with in_one_line(self.name):
                self._session = open_session(self._arguments, self._stop_signals)
                self._session.open()
        except BaseException as error:
            self._close(error)
            raise
        self._place = "open"
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        """Saves the end, if no last step did. After an error nothing is saved: the step may be half done."""
        try:
            if error is None:
                self._leave()
        except BaseException as problem:
            error = problem
            raise
        finally:
            self._close(error)

    @property
    def step(self) -> int:
        return self._opened.step

    @property
    def generation(self) -> str | None:
        return self._opened.generation

    @property
    def problem(self) -> str | None:
        return self._opened.problem

    @property
    def is_stopped(self) -> bool:
        return self._opened.stop_request is not None

    @property
    def is_finished(self) -> bool:
        return self._opened.is_finished and not self.is_stopped

    def steps(self, num_steps: int) -> Iterator[int]:
        """The steps that are still to be done, of ``num_steps`` in all; the first step of a run is 0.

        Between two steps the run saves if it is time to. The steps end early if the run is asked to stop.
        """
        if self.begin(num_steps):
            goes_on = True
            while goes_on:
                self._place = "in a step"
                yield self.step
                goes_on = self.end_step()

    def begin(self, num_steps: int) -> bool:
        """As ``steps`` begins, for loops that belong to a library; False if no step is to be done."""
        self._demand("open", what="run.steps(...) is called once, in the `with` block")
        if not isinstance(num_steps, int) or num_steps < 1:
            raise DurableError(f"{self.name}: {num_steps!r} steps; expected a whole number of at least 1")
        if names := self._opened.state.unbound:
            where = f"is in the checkpoint {self.generation}, and this script has none"
            raise DurableError(f"{self.name}: state/{names[0]}: {where}")
        with in_one_line(self.name):
            goes_on = self._opened.begin(num_steps)
        self._place = "between"
        return goes_on

    def end_step(self) -> bool:
        """Ends a step; False if no other one follows. Only for loops that belong to a library.

        The last step saves the end at once: what comes after it may draw random numbers.
        """
        self._demand("in a step", "between", what="run.end_step() ends a step")
        with in_one_line(self.name):
            goes_on = self._opened.end_step(self._values, save=self._is_save_asked)
            if not goes_on:
                self._opened.finish(self._values)
        self._place, self._is_save_asked = "between" if goes_on else "done", False
        self._values = {}
        return goes_on

    def restore_random(self) -> None:
        """Lets a resumed run's first step begin with the saved random numbers, whatever came before it.

        ``steps`` does so itself. Only for loops that belong to a library.
        """
        self._opened.restore_random()

    def record(self, **values: SupportsFloat | None) -> None:
        """Records values of this step: loss, val_loss, learning_rate, grad_norm, epoch.

        Tensors may stay on their device. A step with ``val_loss`` is saved.
        """
        self._demand("in a step", "between", what="run.record(...) is for the steps of run.steps(...)")
        if unknown := values.keys() - {*_VALUES}:
            expected = ", ".join(_VALUES)
            raise DurableError(f"{self.name}: run.record({min(unknown)}=...): expected {expected}")
        self._values |= {name: _kept(value) for name, value in values.items()}

    def save(self) -> None:
        """Saves at the end of this step, whatever the cadence; enough if one rank calls it."""
        self._demand("in a step", "between", what="run.save() saves at the end of a step of run.steps(...)")
        self._is_save_asked = True

    def stop(self) -> None:
        """Lets the run save and end after this step, as ``longhaul stop`` does."""
        self._stop_signals.hear(StopRequest(aim="stop", why="the script"))

    def bind(self, name: str, value: object) -> None:
        """Adds an object to the state, and loads what was saved of it. Before the first step."""
        self._demand("open", what="run.bind(...) adds to the state before the first step")
        with in_one_line(self.name):
            self._opened.state.bind(name, value)

    def batches(self, num_samples: int, batch_size: int, *, seed: int = 0) -> Batches:
        """This rank's sample numbers of each step from the present one on; see ``batches``."""
        return batches(
            num_samples,
            batch_size,
            step=self.step,
            seed=seed,
            rank=self._opened.context.rank,
            world_size=self._opened.context.world_size,
            order=self._opened.sample_order,
        )

    def _leave(self) -> None:
        if self._place == "in a step":
            raise DurableError(
                f"{self.name}: the loop was left in the middle of step {self.step + 1}, so its changes are "
                "not saved; call run.stop() instead of break, and let the step end"
            )
        if self._place == "between":
            with in_one_line(self.name):
                self._opened.finish(self._values)

    def _close(self, error: BaseException | None) -> None:
        self._place = "closed"
        try:
            if self._session:
                self._session.close(error)
        finally:
            self._signals.__exit__(None, None, None)

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise DurableError(f"{self.name}: the run begins with its `with` block")
        return self._session

    def _demand(self, *places: _Place, what: str) -> None:
        """Raises ``DurableError`` if a call comes at another time than at ``places``."""
        if self._place not in places:
            raise DurableError(f"{self.name}: {what}, and {_WHEN[self._place]}")


def run(
    name: str,
    *,
    state: Mapping[str, object],
    store: str = "results",
    checkpoint: Mapping[str, Any] | None = None,
    tokens_per_step: int = 0,
    fresh: bool = False,
    resume: str = "latest",
) -> Run:
    """A run of the name ``name`` in ``store``, to be used in a ``with`` statement.

    ``state`` is all that the run needs to go on: the model, the optimizer, the schedule, a dict of one's own.
    ``checkpoint`` has the keys of a spec's section of that name. ``tokens_per_step`` counts over all ranks.
    ``fresh`` begins at step 0; ``resume`` names a generation to begin from.
    """
    for problem in too_old(version_of):
        raise DurableError(problem)
    try:
        spec = OwnLoop.of_arguments(name=name, checkpoint=checkpoint or {}, tokens_per_step=tokens_per_step)
    except SpecError as error:
        raise DurableError(str(error)) from None
    return Run(Arguments(spec=spec, store=store, state=state, fresh=fresh, resume=resume))


def _kept(value: SupportsFloat | None) -> SupportsFloat | None:
    """A copy of a tensor: the training may change it before it is read."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
