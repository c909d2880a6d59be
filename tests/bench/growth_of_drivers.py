"""What a driver spends on heartbeats, a stop, a lost host and the meeting of its ranks, of 8 to 16,384.

See ``growth``. Heartbeats go through the real board, monitor, alarms, looks at links and gauges, and are
pickled in between, as Ray does. What Ray itself adds is not in it, see ``docs/scale.md``.
"""

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cluster.inventory import Inventory, Node, Request, WorkerGroup, node_names
from cluster.placement import Placed, place
from jobs.alerts.link_looks import LinkLooks
from jobs.alerts.rules import Alarms, Bounds, Wanted
from jobs.execution.board import Assembled, Board, Departed, Lost, Post, Raised, Ready
from jobs.execution.causes import cause_of
from jobs.execution.messages import Heartbeat, SessionLimits, beat_interval_s
from jobs.execution.monitor import GroupMonitor, Inquiry
from jobs.gauges.run_gauges import RunGauges
from jobs.recovery.policy import FailedAttempt, Policy, Retry, next_move
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest
from tests.bench.growth import WORLD_SIZES, Cost, Row, cpu_s, measured, peak_bytes

RANKS_PER_HOST = 8
MOST_CORES = 1.0
_GROUP = "bench"
_POLLS_PER_S = 4
# Of heartbeats. Utilization is judged once a minute of it was heard.
_SIMULATED_S = 64
_NUM_ENDS = 3
_PEER = "RuntimeError: Connection closed by peer [10.0.0.7]:4711"


def main(world_sizes: Sequence[int] = WORLD_SIZES) -> bool:
    found = measured(world_sizes, lambda world_size: _Trial(world_size).costs())
    are_met = [_row(what, costs).show() for what, costs in found.items()]
    return all(are_met)


def _row(what: str, costs: Sequence[tuple[int, Sequence[Cost]]]) -> Row:
    if not what.startswith("heartbeats"):
        return Row(what=what, costs=costs)
    is_met = max(one.cpu_s for one in costs[-1][1]) <= MOST_CORES
    return Row(what=what, costs=costs, bound=" (bound 1 core)", is_met=is_met)


class _Trial:
    """A driver and the board of one worker group of ``world_size`` simulated ranks."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        nodes = [
            Node(node_id=f"{number:056x}", num_devices=RANKS_PER_HOST, num_cpus=64, name=f"host-{number:05}")
            for number in range(-(-world_size // RANKS_PER_HOST))
        ]
        self._group = WorkerGroup(name=_GROUP, vendor="nvidia", nodes=tuple(nodes))
        self._ids = tuple(nodes[rank // RANKS_PER_HOST].node_id for rank in range(world_size))
        limits = SessionLimits(schedule_timeout_s=60.0, cell_timeout_s=1e9, patience_s={"save": 900.0})
        self._limits = limits
        self._now = 0.0
        self._steps = 0

    def costs(self) -> dict[str, Cost]:
        begun = cpu_s(self._begin)
        peak = peak_bytes(partial(self._beat, 2))
        spent_s = cpu_s(partial(self._beat, _SIMULATED_S)) / _SIMULATED_S
        of_beats = Cost(cpu_s=spent_s, num_bytes=self._num_bytes // (_SIMULATED_S + 2), memory_bytes=peak)
        return {
            "a start: hosts placed, ranks met": Cost(cpu_s=begun),
            "heartbeats: CPU-s and bytes of a second": of_beats,
            "a stop: asked for, all ranks depart": self._anew(self._stop),
            "a lost host: who is to blame, what next": self._anew(self._lose_a_host),
        }

    def _anew(self, work: Callable[[], None]) -> Cost:
        """The least of a few worker groups' ends: they are short, and the machine may be busy."""
        spent_s = []
        for _ in range(_NUM_ENDS):
            self._begin()
            self._beat(2)
            spent_s.append(cpu_s(work))
        return Cost(cpu_s=min(spent_s))

    def _begin(self) -> None:
        inventory = Inventory(groups=(self._group,), source="bench")
        (placed,) = place([Request(group=_GROUP, num_workers=self._world_size)], inventory)
        assert isinstance(placed, Placed)
        self._board, self._num_bytes = Board(), 0
        self._monitor = GroupMonitor(self._world_size, self._limits, self._now, _INQUIRY)
        self._alarms = Alarms(Bounds(), Wanted(every_s=60.0, every_steps=None))
        self._links = LinkLooks(0.25, lambda hosts, is_wanted: None, lambda tried: None, ticks=self._ticks)
        self._links.begins(self._world_size)
        self._gauges = RunGauges(None, 0.0)
        self._nodes = node_names(self._group, self._ids)
        self._send([Assembled(node_ids=self._ids)])
        self._send([Ready(rank=rank, logs=("out", "err"), oom_kills=0) for rank in range(self._world_size)])
        self._take()
        assert self._monitor.is_met

    def _ticks(self) -> float:
        return self._now

    def _beat(self, for_s: int) -> None:
        """All ranks send heartbeats at their cadence for so long, and the driver polls as it does."""
        polls_a_beat = max(1, round(beat_interval_s(self._world_size) * _POLLS_PER_S))
        for poll in range(for_s * _POLLS_PER_S):
            self._now += 1 / _POLLS_PER_S
            self._steps += 1
            senders = range(poll % polls_a_beat, self._world_size, polls_a_beat)
            self._send([self._beat_of(rank) for rank in senders])
            self._take()
            assert self._monitor.verdict(self._now) is None
            if poll % _POLLS_PER_S == 0:
                self._gauges.readings(self._now, self._now)

    def _beat_of(self, rank: int) -> Heartbeat:
        return Heartbeat(
            run_id="run",
            rank=rank,
            phase="window",
            step=self._steps,
            num_steps=10**6,
            step_s=1.0,
            memory_bytes=80 * 10**9,
            doing="productive",
            pace_s=0.001 + (rank * 7919 + self._steps) % 100 / 1e6,
            utilization_pct=90.0 + rank % 9,
            power_watts=600.0,
            device_step=self._steps,
        )

    def _send(self, posts: Sequence[Post]) -> None:
        for post in posts:
            data = pickle.dumps(post)
            self._num_bytes += len(data)
            self._board.post(_GROUP, pickle.loads(data))

    def _take(self) -> None:
        for _, post in pickle.loads(pickle.dumps(self._board.take())):
            self._monitor.hear(post, self._now)
            if isinstance(post, Heartbeat):
                beat = replace(post, node=self._nodes[post.rank])
                assert not self._alarms.hear(beat, self._now)
                self._links.hear(beat)
                self._gauges.hear(beat, self._now)

    def _stop(self) -> None:
        self._board.request_stop(_GROUP, StopRequest(aim="stop", why="bench"))
        assert self._board.stop_request(_GROUP)
        self._send([Departed(rank=rank) for rank in range(self._world_size)])
        self._take()
        assert self._monitor.verdict(self._now) is None

    def _lose_a_host(self) -> None:
        """One host is gone; all others say within a moment that a peer is."""
        gone = range(min(RANKS_PER_HOST, self._world_size))
        reason = "its node was terminated"
        lost = [Lost(rank=rank, reason=reason, is_death=True, is_out_of_memory=False) for rank in gone]
        told = Failure(status="crash", reason=_PEER)
        others = range(len(gone), self._world_size)
        echoes = [Raised(run_id="run", rank=rank, failure=replace(told, ranks=(rank,))) for rank in others]
        self._send([*echoes, *lost])
        self._take()
        failure = self._monitor.verdict(self._now)
        assert failure is not None and failure.ranks == tuple(gone), failure
        blamed = self._monitor.held_against(failure)
        names = node_names(self._group, self._monitor.node_ids)
        attempt = FailedAttempt(
            term=1,
            cause=cause_of(failure, self._monitor.lost[0]),
            reason=failure.reason,
            ended_s=self._now,
            ranks=blamed,
            nodes=tuple({names[rank]: None for rank in blamed}),
            all_nodes=tuple(dict.fromkeys(names)),
        )
        assert isinstance(next_move([attempt], Policy()), Retry)


_INQUIRY = Inquiry(
    remains=lambda node_id, ready: None,
    last_lines=lambda standing: (),
    unmet=lambda ranks, limit_s: Failure(status="hang", reason="unmet", ranks=ranks),
    broken_ways=lambda nodes: (),
)

if __name__ == "__main__":
    sys.exit(0 if main() else 1)
