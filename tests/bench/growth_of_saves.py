"""What a save, a choice, a plan, retention, gc, status and a start cost at 8 to 16,384 simulated ranks.

See ``growth``. The store is in memory, so its time is not in the figures, and its requests are counted.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from checkpointing.format.manifest import TENSORS, TensorInfo, file_name, piece_name
from checkpointing.format.pieces import Encoded
from checkpointing.format.records import table_of
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.choice import choose
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.manifests import InPieces, opened, put_beside, with_parts
from checkpointing.generations.repository import Repository, generation_name
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Verified
from jobs.runs.status import status_of
from tests.bench.counting_store import CountingStore
from tests.bench.growth import WORLD_SIZES, Cost, Row, cpu_s, measured
from tests.bench.scale import NUM_ROWS, RANKS_PER_HOST, message_s, part_of, through_rank_0
from tests.unit import layouts
from tests.unit.small_generations import RUN, cut_of

NUM_TENSORS = 4096
MOST_BYTES, MOST_SAVE_S, MOST_PLAN_S = 100e6, 1.0, 5.0
_KEEP = Retention(last=2)
# A job that was killed in its save left the files of so many of its ranks.
_LEFT_SHARE = 2


def main(world_sizes: Sequence[int] = WORLD_SIZES) -> bool:
    per_message_s = message_s()
    found = measured(world_sizes, lambda world_size: _Trial(world_size, per_message_s).costs())
    are_met = [_row(what, costs).show() for what, costs in found.items()]
    return all(are_met)


def _row(what: str, costs: Sequence[tuple[int, Sequence[Cost]]]) -> Row:
    last = costs[-1][1]
    most_s = max(one.cpu_s for one in last)
    if what.startswith("a save"):
        is_met = most_s <= MOST_SAVE_S and max(one.num_bytes + one.memory_bytes for one in last) <= MOST_BYTES
        return Row(what=what, costs=costs, bound=" (bound 1 CPU-s, 100 MB with the peak)", is_met=is_met)
    if what.startswith(("choice", "plan")):
        return Row(what=what, costs=costs, bound=" (bound 5 s)", is_met=most_s <= MOST_PLAN_S)
    return Row(what=what, costs=costs)


class _Trial:
    """One run of ``world_size`` simulated ranks in a store of its own."""

    def __init__(self, world_size: int, per_message_s: float) -> None:
        self._world_size = world_size
        self._per_message_s = per_message_s
        self._store = CountingStore()
        self._repository = Repository(self._store, RUN)
        self._term = self._repository.take_over("bench")
        self._tensors = [
            TensorInfo(
                name=f"param/model.layers.{number}.weight",
                dtype="F32",
                shape=(NUM_ROWS, 1024 * (1 + number % 3)),
            )
            for number in range(NUM_TENSORS)
        ]

    def costs(self) -> dict[str, Cost]:
        found = {"a save, through rank 0": self._save(1)}
        for number in (2, 3):
            self._save(number)
        found["retention: a generation deleted"] = self._cost(
            lambda: self._repository.retire(_KEEP, term=self._term)
        )
        found["choice: the log, the choice, the root"] = self._cost(self._choose)
        for times, what in ((1.0, "as many"), (0.5, "half as many"), (2.0, "twice as many")):
            found[f"plan of one rank, for {what} ranks"] = self._cost(partial(self._plan, times))
        found["status"] = self._cost(lambda: status_of(self._store, RUN))
        self._leave_half_a_save()
        found["a start: the run taken over"] = self._cost(lambda: self._fresh().take_over("another"))
        found["gc: found and removed"] = self._cost(self._collect)
        return found

    def _fresh(self) -> Repository:
        return Repository(self._store, RUN)

    def _cost(self, work: Callable[[], object]) -> Cost:
        requests, num_bytes = self._store.num_requests, self._store.num_bytes
        spent_s = cpu_s(work)
        return Cost(
            cpu_s=spent_s,
            num_requests=self._store.num_requests - requests,
            num_bytes=self._store.num_bytes - num_bytes,
        )

    def _save(self, number: int) -> Cost:
        """Rank 0's share: messages, receipts, the root and the log. The others have written before."""
        size = self._world_size
        cut = cut_of(number * 10, term=self._term, number=number, world_size=size)
        parts = [part_of(self._tensors, rank, size) for rank in (0, size - 1)]
        encoded, rank_0, _ = through_rank_0(cut, table_of(parts[:1]), parts[-1], size)
        for rank in range(size):
            self._repository.put_file(cut.generation, file_name(rank), b"x")
        objects = encoded.objects
        led = {name: data for name, data in objects.items() if name not in (TENSORS, piece_name(0))}
        put_beside(self._store, self._repository.place(cut.generation).folder, replace(encoded, objects=led))
        own = {name: data for name, data in objects.items() if name not in led}
        rest = replace(encoded, objects=own, num_bytes_there=sum(map(len, led.values())))
        cost = self._cost(lambda: self._commit(rest))
        num_heard = RANKS_PER_HOST + size // RANKS_PER_HOST - 1
        return Cost(
            cpu_s=cost.cpu_s + rank_0.cpu_s + 2 * num_heard * self._per_message_s,
            num_requests=cost.num_requests,
            num_bytes=rank_0.num_bytes,
            memory_bytes=rank_0.memory_bytes,
        )

    def _commit(self, encoded: Encoded) -> None:
        generation = self._repository.commit(encoded, term=self._term)
        self._repository.read_manifest_back(generation, by_others=range(RANKS_PER_HOST, self._world_size))
        self._repository.append(Verified(name=generation.name), term=self._term)

    def _choose(self) -> None:
        repository = self._fresh()
        decision = choose(repository.refresh())
        assert decision.chosen is not None
        found = repository.view.generation(decision.chosen.name)
        assert found is not None
        opened(repository.stored_manifest(found))

    def _plan(self, times: float) -> None:
        world_size = int(self._world_size * times)
        rank = world_size - 1
        repository = self._fresh()
        generation = repository.refresh().generations[-1]
        found = opened(repository.stored_manifest(generation))
        assert isinstance(found, InPieces)
        wants = [
            Want(tensor=one.name, start=start, length=length, num_elements=one.num_elements, dtype=one.dtype)
            for one in self._tensors
            for start, length in [layouts.rows(one, rank, world_size)]
        ]
        plan(with_parts(repository.place(generation.name), found, wants, rank), wants)

    def _leave_half_a_save(self) -> None:
        name = generation_name(990, self._term, "killed")
        for rank in range(self._world_size // _LEFT_SHARE):
            self._repository.put_file(name, file_name(rank), b"x")

    def _collect(self) -> None:
        repository = self._fresh()
        repository.refresh()
        garbage = find_garbage(repository, now=datetime.now(UTC))
        assert garbage.num_objects == self._world_size // _LEFT_SHARE
        assert not remove(repository, garbage)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
