"""What a real training records, killed in the middle: each step once, lost ones marked, no time missing."""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Finish
from checkpointing.log.trust import slot_name
from checkpointing.stores.contract import Buffer, Unavailable
from checkpointing.stores.local import LocalStore
from jobs.training.loop import incidents
from reporting.long_runs.summarising import long_runs, write_steps
from reporting.long_runs.summary import LongRun
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.scalars import RecordedWindow
from reporting.recording.sinks import InThread, TensorBoard, WeightsAndBiases
from tests.live.command_line import run, running, write_spec
from tests.live.forked_command import run_forked

RUN = """
name: r
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 480
data: {samples: 64}
eval: {every_steps: 240, samples: 4}
checkpoint: {every_steps: 16, on_busy: wait, retention: {epochs: false}}
record: {flush_s: 0.1}
"""
DEADLINE_S = 120
NOON_S = 1_800_000_000.0


def train_command(spec: Path, store: Path, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store)]
    return [*command, "--executor", "inline", *flags]


def a_window(steps: range, *, start: int, term: int = 1, is_last: bool = True) -> RecordedWindow:
    rows = [
        {"step": step, "ended_s": NOON_S + 100 * term + step, "step_s": 1.0, "loss": term + 1 / step}
        | dict.fromkeys(("val_loss", "grad_norm", "learning_rate"))
        for step in steps
    ]
    of = RecordedAttempt(
        run="r",
        term=term,
        leased_s=NOON_S,
        group="local",
        vendor="cpu",
        model="llama-tiny",
        strategy="ddp",
        world_size=1,
        num_steps=100,
        tokens_per_step=64,
        start_step=start,
    )
    return RecordedWindow(attempt=of, rows={"steps": rows}, is_last=is_last)


def test_the_start_of_an_attempt_counts_one_rank_in_the_singular() -> None:
    assert [incidents.started(num).text for num in (1, 2)] == ["1 rank", "2 ranks"]


def test_tensorboard_shows_each_step_as_it_was_done_last(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    TensorBoard(store)(a_window(range(1, 11), start=0))
    TensorBoard(store)(a_window(range(7, 13), start=6, term=2))
    seen = EventAccumulator(str(tmp_path / "runs/r/events")).Reload()
    found = [(event.step, round(event.value, 4)) for event in seen.Scalars("train/loss")]
    first = [(step, round(1 + 1 / step, 4)) for step in range(1, 7)]
    assert found == first + [(step, round(2 + 1 / step, 4)) for step in range(7, 13)]
    assert {"train/loss", "train/tokens_per_s"} <= set(seen.Tags()["scalars"])


def test_tensorboard_gets_fewer_files_the_older_a_training_is_and_the_rest_at_the_end(tmp_path: Path) -> None:
    board = TensorBoard(LocalStore(tmp_path))
    folder = tmp_path / "runs/r/events"
    nums_files = []
    windows = [range(1, 5), range(5, 10), range(90_000, 90_001), range(90_001, 90_050), range(90_050, 90_052)]
    for steps in windows:
        board(a_window(steps, start=0, is_last=steps is windows[-1]))
        nums_files.append(len(list(folder.iterdir())))
    assert nums_files == [1, 2, 3, 3, 4]
    seen = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [step for one in windows for step in one]


class Failing(LocalStore):
    """The first name that is created is refused, but is there all the same if the store ``keeps`` it."""

    def __init__(self, root: Path, *, keeps: bool) -> None:
        super().__init__(root)
        self._keeps = keeps
        self._num_creates = 0

    def create(self, name: str, data: Buffer) -> None:
        self._num_creates += 1
        if self._num_creates > 1 or self._keeps:
            super().create(name, data)
        if self._num_creates == 1:
            raise Unavailable("store: away")


@pytest.mark.parametrize("keeps", [False, True])
def test_tensorboard_gets_later_what_could_not_be_written_and_still_forgets_what_was_done_again(
    tmp_path: Path, keeps: bool
) -> None:
    TensorBoard(LocalStore(tmp_path))(a_window(range(1, 11), start=0))
    board = TensorBoard(Failing(tmp_path, keeps=keeps))
    with pytest.raises(Unavailable):
        board(a_window(range(7, 9), start=6, term=2, is_last=False))
    board(a_window(range(9, 13), start=6, term=2))
    seen = EventAccumulator(str(tmp_path / "runs/r/events")).Reload()
    found = [(event.step, round(event.value, 4)) for event in seen.Scalars("train/loss")]
    first = [(step, round(1 + 1 / step, 4)) for step in range(1, 7)]
    assert found == first + [(step, round(2 + 1 / step, 4)) for step in range(7, 13)]


def test_of_what_waits_for_a_store_that_stays_away_the_newest_is_kept(tmp_path: Path) -> None:
    board = TensorBoard(Failing(tmp_path, keeps=False))
    with pytest.raises(Unavailable):
        board(a_window(range(1, 6_000), start=0, is_last=False))
    board(a_window(range(6_000, 12_001), start=0))
    (file,) = (tmp_path / "runs/r/events").iterdir()
    guidance = {"scalars": 20_000}
    steps = [event.step for event in EventAccumulator(str(file), guidance).Reload().Scalars("train/loss")]
    assert steps == list(range(12_001 - len(steps), 12_001))
    assert 5_000 < len(steps) <= 10_000


def looks() -> Iterator[None]:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        time.sleep(0.05)
        yield
    pytest.fail("it did not happen in time")


def test_weights_and_biases_is_told_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    sink = InThread(WeightsAndBiases(project="longhaul", entity=None))
    sink(a_window(range(1, 4), start=0))
    # On a busy machine it takes longer to start than the end of a training waits for it.
    for _ in looks():
        told = b"".join(log.read_bytes() for log in tmp_path.glob("wandb/offline-run-*/run-r.wandb"))
        if b"train/loss" in told and b"longhaul" in told:
            break


def test_a_service_that_fails_is_logged_once_and_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_window: RecordedWindow) -> None:
        raise OSError("no such host")

    sink = InThread(fail)
    sink(a_window(range(1, 2), start=0, is_last=False))
    sink(a_window(range(2, 3), start=0))
    assert [record.getMessage() for record in caplog.records] == ["function: no such host"]


def test_what_a_slow_service_has_waiting_comes_to_it_at_once() -> None:
    came, is_slow = list[list[int]](), threading.Event()

    def slow(window: RecordedWindow) -> None:
        came.append([row["step"] for row in window.of("steps")])
        assert is_slow.wait(DEADLINE_S)

    sink = InThread(slow)
    sink(a_window(range(1, 3), start=0, is_last=False))
    for _ in looks():
        if came:
            break
    for step in range(3, 9):
        sink(a_window(range(step, step + 1), start=0, is_last=False))
    is_slow.set()
    sink(a_window(range(9, 10), start=0))
    assert came[0] == [1, 2]
    assert [step for steps in came for step in steps] == [*range(1, 10)]
    assert len(came) <= 3


def steps_in(store: Path) -> list[dict[str, Any]]:
    path = store.with_suffix(".parquet")
    write_steps(LocalStore(store), path)
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def newest_durable_step(store: Path) -> int:
    return max((found.step for found in Repository(LocalStore(store), "r").refresh().generations), default=0)


# The clock of files goes on a hundred times a second, and a machine's may be set right by a little meanwhile.
SLACK_S = 0.1
# A time since 1970 is kept to a quarter of a microsecond, and there are some hundred of them.
ROUNDING_S = 1e-3


def written_s(path: Path) -> float:
    return path.stat().st_mtime


def wall_s_as_seen_from_outside(store: Path, began_s: float) -> tuple[float, float]:
    """At least and at most. The first lease lay between the start of its process and the first record of the
    log; the last word between the record that the run is done and the last part.
    """
    records = sorted(Repository(LocalStore(store), "r").records(), key=lambda record: record.number)
    (done,) = (record.number for record in records if isinstance(record.entry, Finish))
    leased_s, done_s = (written_s(store / slot_name("r", number)) for number in (1, done))
    last_s = max(written_s(part) for part in (store / "runs/r/parts").rglob("*.parquet"))
    return done_s - leased_s - SLACK_S, last_s - began_s + SLACK_S


def time_of_steps(found: LongRun) -> float:
    """Without Ray nothing but a long step is a stall."""
    return sum(found.phases.get(name, 0.0) for name in ("productive", "recompute", "stall"))


def recorded_after_the_last_span_s(store: Path, rows: list[dict[str, Any]]) -> float:
    """Of the attempt that was killed: its phases and its steps are flushed one after the other, and what it
    was doing when it died was no step yet. Everything else is the same time, told twice.
    """
    parts = (store / "runs/r/parts/phases").glob("00001-*.parquet")
    last_s = max(row["ended_s"] for part in parts for row in pq.read_table(part).to_pylist())
    return sum(row["step_s"] for row in rows if row["term"] == 1 and row["ended_s"] > last_s)


def test_a_killed_run_that_goes_on_counts_each_step_once_and_accounts_for_all_of_its_time(
    tmp_path: Path,
) -> None:
    store, spec = tmp_path / "store", write_spec(tmp_path, RUN)
    began_s = time.time()
    with running(train_command(spec, store)) as process:
        for _ in looks():
            process.send_signal(signal.SIGSTOP)
            recorded = max((row["step"] for row in steps_in(store)), default=0)
            is_shown = any(store.glob("runs/r/events/*"))
            if recorded > newest_durable_step(store) > 0 and is_shown:
                break
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=30)
    killed_s = time.time()
    durable = newest_durable_step(store)
    second_s = time.time()
    last = run_forked(train_command(spec, store))
    assert last.returncode == 0, last.stderr

    rows = steps_in(store)
    counted = [row for row in rows if not row["superseded"]]
    assert [row["step"] for row in counted] == list(range(1, 481))
    assert [row["step"] for row in rows if row["superseded"]] == list(range(durable + 1, recorded + 1))
    assert {row["term"] for row in counted if row["step"] <= durable} == {1}
    assert [row["step"] for row in counted if row["val_loss"] is not None] == [240, 480]
    assert all(row["loss"] > 0 and row["step_s"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert [row["position"] for row in counted] == list(range(1, 481))

    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    assert found.wall_sec is not None and found.goodput is not None
    least_s, most_s = wall_s_as_seen_from_outside(store, began_s)
    assert least_s < found.wall_sec < most_s
    assert found.phases["detect"] > second_s - killed_s - SLACK_S
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)
    assert {"productive", "recompute", "restore", "start", "detect", "eval", "save"} <= set(found.phases)
    assert 0 < found.goodput < 1
    missing_s = sum(row["step_s"] for row in rows) - time_of_steps(found)
    assert -ROUNDING_S < missing_s < recorded_after_the_last_span_s(store, rows) + ROUNDING_S
    (restart,) = found.recoveries
    assert (restart.step, restart.num_redone, restart.cause) == (durable, recorded - durable, "failure")
    assert {"detect", "start", "restore", "recompute"} <= set(restart.phases)
    assert restart.device_s == pytest.approx(restart.seconds)
    kinds = [kind for _, kind, _ in found.incidents]
    assert kinds.count("failure") == 1
    assert kinds.index("start") < kinds.index("failure") < kinds.index("restore") < kinds.index("end")

    seen = EventAccumulator(str(store / "runs/r/events")).Reload()
    shown = [event.step for event in seen.Scalars("train/loss")]
    # What was not flushed as it was killed is missing; no step is shown twice.
    assert shown == sorted(set(shown))
    assert set(range(durable + 1, 481)) <= set(shown)
    assert seen.Scalars("train/loss")[0].value == pytest.approx(counted[0]["loss"], rel=1e-6)

    status = run([sys.executable, "-m", "jobs.cli", "status", "r", "--store", str(store), "--json"])
    told = json.loads(status.stdout)["recorded"]
    assert (told["num_steps"], told["num_superseded"]) == (480, recorded - durable)
    assert told["goodput"] == pytest.approx(found.goodput)
    assert told["incidents"][-1]["kind"] == "end"
