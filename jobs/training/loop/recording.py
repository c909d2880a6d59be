"""Records a rank's part of a long run while it trains: steps, incidents and where the time went.

Rank 0 records everything, with the loss over all ranks. Other ranks record the time and their own loss of
their steps, and their failures. Nothing
here waits for the store or for the device during the training, and nothing raises into the training.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from checkpointing.saving.save import SaveNote
from checkpointing.stores.contract import Store
from cluster.probe import door
from cluster.telemetry.readings import Nothing
from cluster.telemetry.sampler import Sampler
from jobs.training.device.device_sample import sample_of
from jobs.training.device.rank_device import telemetry
from jobs.training.health.loss_guard import StepDone
from jobs.training.health.rank_speed import RankSpeed
from jobs.training.loop import incidents
from jobs.training.models.attention import kernel_of
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.state.restoring import ResumePoint
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.events import Replayed
from jobs.training.task.position import StepPoint
from jobs.training.task.task import Recording, Task
from reporting.recording.attempts import (
    DeviceSample,
    Incident,
    IncidentKind,
    LossesBySource,
    LossOverRanks,
    Step,
)
from reporting.recording.outbox import Outbox
from reporting.recording.recorder import Recorder, SampleDevice, Sink
from reporting.recording.steady_clock import started_s

# A store that is away at the end must not keep a device from its next run.
_CLOSE_TIMEOUT_S = 10.0


class AttemptRecord:
    """Records one attempt as ``jobs.training.loop.attempt`` goes on. Time counts for the newest phase."""

    def __init__(self, task: Task, context: Context, recorder: Recorder) -> None:
        self._task = task
        self._status = context.status
        self._status.doing = "start"
        self._is_rank_0 = context.rank == 0
        self._recorder = recorder
        self._tokens = task.recipe.tokens_per_step // task.recipe.world_size
        self._learning_rate: float | None = None
        self._num_skipped = 0
        self._restored_s = time.perf_counter()
        self._step = 0
        self._open_losses: dict[int, LossOverRanks] = {}
        self._open_sources: dict[int, LossesBySource] = {}
        # Only for long runs: a benchmark's step times must not include the test product.
        self._rank_speed = RankSpeed(context) if task.saving else None

    def phase(self, name: str) -> None:
        self._status.doing = name
        self._recorder.phase(name)

    @property
    def data_wait_s(self) -> float:
        """How long this rank waited for samples, over all steps that have begun."""
        return self._recorder.data_wait_s

    def begin(self, how: str) -> None:
        """``how`` says what is worth knowing of how this attempt computes."""
        if self._is_rank_0:
            self._recorder.incident(incidents.started(self._task.recipe.world_size, how))

    def trains_on(self, num_tokens: int) -> None:
        """Says how many tokens this rank learns in the step that has begun, where that is not all of them."""
        self._tokens = num_tokens

    def restoring(self) -> None:
        self.phase("restore")
        self._restored_s = time.perf_counter()

    def restored(self, start: ResumePoint) -> None:
        if start.warning:
            self._recorder.incident(Incident(kind="warning", step=start.step, text=start.warning))
        if self._is_rank_0 and start.generation:
            self._recorder.incident(incidents.restored(start, time.perf_counter() - self._restored_s))
        self.phase("start")
        self._step = start.step
        self._recorder.begin_at(start.step, start.term)

    def begin_step(self, engine: Engine) -> None:
        """Begins a step; call it when the step's samples are there."""
        self.phase("productive")
        self._learning_rate = engine.learning_rate if self._is_rank_0 else None

    def end_step(self, point: StepPoint, done: StepDone, num_skipped_saves: int) -> None:
        """Ends a step. ``mean_loss`` tells its loss over all ranks later. The recorder's thread reads this
        rank's results: reading them here would wait for the device.
        """
        if num_skipped_saves > self._num_skipped:
            self._num_skipped = num_skipped_saves
            if self._is_rank_0:
                self._recorder.incident(Incident(kind="skipped save", step=point.step))
        self._status.doing = "data wait"
        self._step = point.step
        if self._rank_speed:
            self._rank_speed.update()
        if self._is_rank_0 and self._task.recipe.world_size > 1:
            self._open_losses[point.step] = LossOverRanks()
        if self._is_rank_0 and self._task.mixture:
            names = tuple(one.name for one in self._task.mixture.sources)
            self._open_sources[point.step] = LossesBySource(names)
        self._recorder.step(
            Step(
                step=point.step,
                position=point.position,
                epoch=(point.position - 1) // self._task.num_samples + 1,
                tokens=self._tokens,
                loss=self._open_losses.get(point.step, done.loss),
                grad_norm=done.grad_norm if self._is_rank_0 else None,
                learning_rate=self._learning_rate,
                val_loss=point.metrics.get("val_loss") if self._is_rank_0 else None,
                source_losses=self._open_sources.get(point.step),
            )
        )

    def mean_loss(self, step: int, mean: float | None, sums: Sequence[float] | None = None) -> None:
        """Tells the loss of ``step`` over all ranks; None if it can't be told. So are the ``sums`` of a
        mixture, see ``StepDone.by_source``.
        """
        if (by_source := self._open_sources.pop(step, None)) is not None:
            by_source.know(sums)
        if (found := self._open_losses.pop(step, None)) is not None:
            found.know(mean)

    def replayed(self, found: Replayed) -> None:
        kind: IncidentKind = "replay" if found.agrees else "warning"
        self._recorder.incident(Incident(kind=kind, step=found.step, text=found.text))

    def save(self, note: SaveNote) -> None:
        """Records a save; called by the writer's threads."""
        if self._is_rank_0 or note.problem:
            self._recorder.incident(incidents.saved(note))
        if note.finding:
            self._recorder.incident(Incident(kind="warning", step=note.step, text=note.finding))

    def end(self, error: BaseException | None, step: int) -> None:
        if error is not None:
            self._recorder.incident(incidents.broken_off(error, step))
        elif self._is_rank_0:
            kind: IncidentKind = "end" if self._step >= self._task.num_steps else "stop"
            self._recorder.incident(Incident(kind=kind, step=self._step))


@contextmanager
def recording(task: Task, context: Context) -> Iterator[AttemptRecord]:
    """Records the block and how it ends, also if an error ends it.

    The end of the block writes all records to the store and waits at most 10 s for that.
    """
    store = task.open_store()
    source = telemetry(context.device)
    sampler = Sampler(source)
    recorder = Recorder(
        task.as_recorded(),
        context.rank,
        Outbox(store, context.rank),
        flush_s=task.recording.flush_s,
        sinks=_sinks(task.recording, store) if context.rank == 0 else (),
        sample_device=_device_sampling(context, sampler),
        clock=lambda: started_s(task.leased_s, time.time()),
    )
    record = AttemptRecord(task, context, recorder)
    sampler.start()
    recorder.start()
    try:
        kernel, within = _attention_of(task, context)
        recorder.attends_by(kernel)
        record.begin(f", attention within {within} (kernel {kernel})" if within else "")
        if isinstance(source, Nothing) and context.device.type != "cpu":
            recorder.incident(Incident(kind="warning", text=f"no telemetry: {source.reason}"))
        yield record
    except BaseException as error:
        record.end(error, context.status.step)
        raise
    else:
        record.end(None, context.status.step)
    finally:
        recorder.close(_CLOSE_TIMEOUT_S)
        sampler.close()


def _attention_of(task: Task, context: Context) -> tuple[str, str | None]:
    """The kernel, and what of a row it attends within: None is all. Raises ``Unfit`` if it can't be had."""
    first, within = next(iter(task.places), None), None
    if first is not None and (first.index.chat or first.end_id is not None):
        within = "conversations" if first.index.chat else "documents"
    dtype = COMPUTE_DTYPE[task.recipe.precision]
    return kernel_of(task.recipe, context.device, dtype, within_samples=within is not None), within


def _sinks(wanted: Recording, store: Store) -> list[Sink]:
    """The sinks that the spec asks for; only their libraries are imported."""
    sinks: list[Sink] = []
    if wanted.tensorboard:
        from reporting.recording.sinks import TensorBoard

        sinks.append(TensorBoard(store))
    if wanted.wandb:
        from reporting.recording.sinks import InThread, WeightsAndBiases

        sinks.append(InThread(WeightsAndBiases(project=wanted.wandb.project, entity=wanted.wandb.entity)))
    if wanted.mlflow:
        from reporting.recording.mlflow import Mlflow
        from reporting.recording.sinks import InThread

        sinks.append(InThread(Mlflow(experiment=wanted.mlflow.experiment)))
    return sinks


def _device_sampling(context: Context, sampler: Sampler) -> SampleDevice | None:
    """A function that samples the device; None on a CPU, whose load is not this rank's alone.

    The function never waits for the device driver: the sampler's thread does.
    """
    device = context.device
    if device.type == "cpu":
        return None
    name = f"{door.name_of(device)} {context.node[:8]}/{context.local_rank}"

    def sample() -> DeviceSample:
        reading = sampler.newest()
        context.status.utilization_pct = reading.utilization_pct
        context.status.power_watts = reading.power_watts
        return sample_of(name, reading, door.allocated_bytes(device))

    return sample
