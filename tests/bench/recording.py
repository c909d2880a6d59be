"""What recording costs a step: all that the training thread does for it, beside TensorBoard's writer."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from tensorboardX import SummaryWriter

from checkpointing.stores.local import LocalStore
from reporting.recording.attempts import RecordedAttempt, Step
from reporting.recording.outbox import Outbox
from reporting.recording.recorder import Recorder

NUM_STEPS = 20_000
# A step every so often, as in a training: the recorder's thread has to work beside it.
STEP_S = 2e-4
BOUND_S = 20e-6
_BLOCK = 200
_ATTEMPT = RecordedAttempt(
    run="bench",
    term=1,
    leased_s=0.0,
    group="local",
    vendor="cpu",
    model="none",
    strategy="ddp",
    world_size=1,
    num_steps=NUM_STEPS,
    tokens_per_step=64,
    start_step=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a step: the median over blocks of steps, and the mean over all, whoever else used the machine."""

    usual_s: float
    mean_s: float


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        ours = _ours(Path(folder) / "ours")
        theirs = _theirs(Path(folder) / "theirs")
    print(
        f"recording      {_in_words(ours)} per step over {NUM_STEPS:,} steps (bound {BOUND_S * 1e6:.0f} us)"
    )
    print(f"               TensorBoard's writer: {_in_words(theirs)} for four scalars of the same step")
    return ours.usual_s < BOUND_S


def _in_words(cost: Cost) -> str:
    return f"{cost.usual_s * 1e6:.2f} us (mean {cost.mean_s * 1e6:.2f} us)"


def _ours(folder: Path) -> Cost:
    """Two marks, a step of twelve columns, flushed to a disk every half second."""
    recorder = Recorder(_ATTEMPT, 0, Outbox(LocalStore(folder), 0), flush_s=0.5)
    recorder.start()

    def record(step: int) -> None:
        recorder.phase("productive")
        recorder.step(
            Step(
                step=step,
                position=step,
                epoch=1,
                tokens=64,
                loss=2.5,
                grad_norm=1.0,
                learning_rate=1e-4,
            )
        )

    try:
        return _cost(record)
    finally:
        recorder.close(10.0)


def _theirs(folder: Path) -> Cost:
    writer = SummaryWriter(str(folder))

    def record(step: int) -> None:
        for tag, value in (("loss", 2.5), ("grad_norm", 1.0), ("learning_rate", 1e-4), ("step_s", STEP_S)):
            writer.add_scalar(tag, value, step)

    try:
        return _cost(record)
    finally:
        writer.close()


def _cost(record: Callable[[int], None]) -> Cost:
    """Of one call, as the training thread sees it."""
    blocks: list[float] = []
    for first in range(0, NUM_STEPS, _BLOCK):
        spent_s = 0.0
        for step in range(first, first + _BLOCK):
            time.sleep(STEP_S)
            started = time.perf_counter()
            record(step)
            spent_s += time.perf_counter() - started
        blocks.append(spent_s / _BLOCK)
    return Cost(usual_s=median(blocks), mean_s=mean(blocks))
