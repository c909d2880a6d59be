"""What a rank tells of itself while its training thread works."""

import weakref
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

from checkpointing.saving.save import Tally
from jobs.execution.messages import Heartbeat
from jobs.launch.ray_train.heartbeat import watching
from jobs.training.task.context import Context, DeviceMarks, RankStatus

if TYPE_CHECKING:
    import torch


def test_a_beat_has_all_that_the_status_has() -> None:
    tally = Tally()
    with tally.uploading(2, 4000, iter((10.0, 15.0)).__next__):
        pass
    status = RankStatus(
        run_id="r",
        phase="window",
        step=3,
        num_steps=9,
        num_batches=2,
        step_s=0.1,
        memory_bytes=5,
        doing="eval",
        pace_s=0.2,
        copy_s=0.3,
        utilization_pct=7.0,
        tally=tally,
    )
    beats: SimpleQueue[Heartbeat] = SimpleQueue()
    context = Context(rank=1, world_size=2, local_rank=1, device=cast("torch.device", None), status=status)
    context.marks.launch(2, Passing(has_passed=True))
    context.marks.launch(2, Passing(has_passed=True))
    with watching(context, beats.put):
        beat = beats.get(timeout=30)
    told = {name: value for name, value in asdict(status).items() if name != "tally"}
    # The driver adds the node.
    of_rank = {"rank": 1, "node": "", "device_step": 2, "device_marks": 1}
    upload = {"step": 2, "num_bytes": 4000, "took_s": 5.0, "is_done": True}
    assert asdict(beat) == {**told, **of_rank, "upload": upload}


def test_a_device_that_answers_with_errors_does_not_end_the_beats() -> None:
    beats: SimpleQueue[Heartbeat] = SimpleQueue()
    context = Context(rank=1, world_size=2, local_rank=1, device=cast("torch.device", None))
    context.marks.launch(2, Broken())
    with watching(context, beats.put):
        told = [beats.get(timeout=30).device_step for _ in range(2)]
    assert told == [None, None]


@dataclass
class Passing:
    has_passed: bool = False

    def query(self) -> bool:
        return self.has_passed


class Broken:
    def query(self) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_device_is_as_far_as_the_marks_that_it_has_passed_one_after_the_other() -> None:
    marks = DeviceMarks()
    assert marks.passed() is None
    launched = [(step, Passing()) for step in (4, 4, 4, 5, 5)]
    for step, mark in launched:
        marks.launch(step, mark)
    assert marks.passed() is None
    seen = []
    for _, mark in (launched[0], launched[2], launched[1], launched[3], launched[4]):
        mark.has_passed = True
        seen.append(marks.passed())
    # That the third mark says to have passed counts only behind the second.
    assert seen == [(4, 0), (4, 0), (4, 2), (5, 0), (5, 1)]


def test_marks_that_were_passed_are_let_go_also_where_nobody_asks() -> None:
    marks, first = DeviceMarks(), Passing(has_passed=True)
    gone = weakref.ref(first)
    marks.launch(1, first)
    del first
    marks.launch(1, Passing())
    assert gone() is None
