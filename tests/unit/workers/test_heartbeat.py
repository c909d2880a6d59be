"""What a rank tells of itself while its training thread works."""

from dataclasses import asdict
from queue import SimpleQueue

from jobs.execution.messages import Heartbeat
from jobs.launch.ray_train.heartbeat import watching
from jobs.training.task.context import RankStatus


def test_a_beat_has_all_that_the_status_has() -> None:
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
        utilization_pct=7.0,
    )
    beats: SimpleQueue[Heartbeat] = SimpleQueue()
    with watching(status, 1, beats.put):
        beat = beats.get(timeout=30)
    # The driver adds the node.
    assert asdict(beat) == {**asdict(status), "rank": 1, "node": ""}
