"""What a driver asks of whoever carries out its attempts; no Ray, no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from checkpointing.repository import Repository
from checkpointing.store import MemoryStore
from cluster.inventory import Inventory, WorkerGroup
from jobs.attempting import Attempts
from jobs.executors import AttemptOrder
from jobs.grid import Cell
from jobs.run_display import RunDisplay
from jobs.run_spec import RunSpec
from jobs.sessions import Beat, Event, Limits, Session
from jobs.training.events import Progress, Told
from jobs.training.task import Task
from jobs.training.wishes import Wish
from jobs.wishers import Wishers
from tests.unit.builders import group
from tests.unit.test_restarts import task

STEP = Progress(
    step=1, num_steps=2, loss=1.0, tokens_per_s=1.0, durable_step=None, durable_s=None,
    num_failed_saves=0, num_skipped_saves=0,
)  # fmt: skip
STOP = Wish(aim="stop", why="Ctrl-C")


@dataclass
class Cluster:
    """Has room for one rank, and for one more beside it once that one has made a step."""

    stop: Callable[[Wish], None]
    orders: list[AttemptOrder] = field(default_factory=list)
    wishes: list[Wish | None] = field(default_factory=list)
    speaks: bool = True
    can_retry: bool = True

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def inventory(self) -> Inventory:
        raise NotImplementedError

    def can_run(self, cell: Cell) -> bool:
        raise NotImplementedError

    def describe(self) -> str:
        return "a cluster"

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        return planned

    def run(self, queues: dict[str, list[Session]], limits: Limits, listen: Callable[[Event], None]) -> None:
        raise NotImplementedError

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        return wanted

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
        return 1

    def attempt(
        self, order: AttemptOrder, make_task: Callable[[], Task], hear: Callable[[Told | Beat], None]
    ) -> str | None:
        self.orders.append(order)
        make_task()
        self.wishes.append(order.wish())
        hear(STEP)
        self.wishes.append(order.wish())
        self.stop(STOP)
        self.wishes.append(order.wish())
        return "pointer"


def test_room_to_grow_makes_it_move_on_and_a_stop_is_stronger() -> None:
    spec = RunSpec.model_validate_json(
        '{"name": "r", "model": "llama-tiny", "steps": 2, "world_size": {"min": 1, "max": 2},'
        ' "elastic": {"wait_for_spare_s": 0, "grow_after_s": 0}, "environment": {"NCCL_DEBUG": "INFO"}}'
    )
    repository, wishers = Repository(MemoryStore(), "r"), Wishers()
    cluster = Cluster(stop=wishers.hear)
    attempts = Attempts(
        cluster,
        spec,
        group(),
        repository,
        lambda world_size, leased_s: task(repository.take_over("driver"), MemoryStore()),
        RunDisplay("r", quiet=True, silent=True),
        wishers,
        may_retry=True,
    )
    assert attempts.work() == "pointer"
    (order,) = cluster.orders
    assert (order.world_size, order.environment["NCCL_DEBUG"]) == (1, "INFO")
    assert cluster.wishes == [None, Wish(aim="move on", why="there is room for 2 ranks"), STOP]
