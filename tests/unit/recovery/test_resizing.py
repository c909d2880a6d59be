"""A driver that asks its cluster for room: before each attempt, and while one runs that could be larger."""

from collections.abc import Callable, Sequence

import pytest

from jobs.launch.inline_executor import InlineExecutor
from jobs.launch.ray_executor import RayExecutor
from jobs.launch.torchrun import LauncherPlace
from jobs.recovery.resizing import Resizing
from jobs.recovery.world_size import ResizeWaits
from jobs.training.task.events import Warned
from jobs.training.task.stop_request import StopRequest
from tests.unit.builders import group

WORD = Warned(text="anything")


class Cluster:
    """Its clock goes on only while somebody waits; what is free changes at the times that it is told."""

    def __init__(self, free: int | None, *, later: dict[float, int | None] | None = None) -> None:
        self.now_s = 0.0
        self.num_asked = 0
        self.left_out: Sequence[str] = ()
        self._free = {0.0: free, **(later or {})}

    def room(self, without: Sequence[str]) -> int | None:
        self.num_asked += 1
        self.left_out = without
        return self._free[max(at_s for at_s in self._free if at_s <= self.now_s)]

    def pause(self, for_s: float) -> None:
        self.now_s += for_s


def resizing(cluster: Cluster, *sizes: int, said: Callable[[str], None] = str) -> Resizing:
    patience = ResizeWaits(wait_for_spare_s=30, grow_after_s=60)
    return Resizing(sizes, patience, cluster.room, said, ticks=lambda: cluster.now_s, pause=cluster.pause)


def first_request(run: Resizing, cluster: Cluster, *, for_s: float) -> tuple[float, StopRequest] | None:
    """When it first wishes to move on, and what, within so many seconds."""
    end = cluster.now_s + for_s
    while cluster.now_s < end:
        if stop_request := run.stop_request():
            return cluster.now_s, stop_request
        cluster.pause(0.25)
    return None


def test_a_run_of_one_size_asks_nobody() -> None:
    cluster = Cluster(0)
    run = resizing(cluster, 2)
    assert run.next_size(()) == 2
    run.hear(WORD)
    assert first_request(run, cluster, for_s=100) is None
    assert (cluster.num_asked, cluster.now_s) == (0, 100)


def test_it_waits_for_a_spare_says_so_once_and_goes_on_smaller() -> None:
    cluster, said = Cluster(3), list[str]()
    assert resizing(cluster, 1, 2, 4, said=said.append).next_size(("bad",)) == 2
    assert (cluster.now_s, cluster.left_out) == (30, ("bad",))
    assert said == [
        "room for 3 of 4 ranks: waits up to 30 s for a spare node, then goes on with fewer",
        "goes on with 2 ranks instead of 4",
    ]


def test_a_spare_that_comes_ends_the_waiting() -> None:
    cluster, said = Cluster(1, later={12: 2}), list[str]()
    assert resizing(cluster, 1, 2, said=said.append).next_size(()) == 2
    assert (cluster.now_s, len(said)) == (12, 1)


def test_what_it_had_itself_is_waited_for_even_by_those_who_wait_for_no_spare() -> None:
    cluster = Cluster(2, later={10: 0, 12: 2})
    run = Resizing(
        (1, 2),
        ResizeWaits(wait_for_spare_s=0),
        cluster.room,
        str,
        ticks=lambda: cluster.now_s,
        pause=cluster.pause,
    )
    run.next_size(())
    run.hear(WORD)
    cluster.now_s = 11
    assert run.next_size(()) == 2
    assert cluster.now_s == 12


def test_waiting_ends_with_what_is_wished_in_the_pause() -> None:
    stop = StopRequest(aim="stop", why="Ctrl-C")
    run = Resizing((1, 2), ResizeWaits(), Cluster(1).room, str, pause=lambda _: stop)
    assert run.next_size(()) == stop


def test_waiting_ends_with_what_the_pause_raises() -> None:
    def interrupted(_for_s: float) -> None:
        raise KeyboardInterrupt

    run = Resizing((1, 2), ResizeWaits(), Cluster(1).room, str, pause=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.next_size(())


def test_it_wishes_to_move_on_when_there_has_been_room_for_more_and_then_has_more() -> None:
    # Beside one rank that runs, one more device is free from second 100 on.
    cluster = Cluster(1, later={40: 0, 100: 1, 165: 2})
    run = resizing(cluster, 1, 2)
    assert run.next_size(()) == 1
    cluster.now_s = 50
    run.hear(WORD)
    assert first_request(run, cluster, for_s=200) == (
        160,
        StopRequest(aim="move on", why="there is room for 2 ranks"),
    )
    cluster.now_s = 165
    assert run.next_size(()) == 2
    run.hear(WORD)
    assert first_request(run, cluster, for_s=500) is None


@pytest.mark.parametrize(("back_at_s", "size"), [(300, 1), (240, 2)])
def test_a_host_that_is_back_in_a_long_pause_is_used_once_it_stayed_as_long_as_a_new_one(
    back_at_s: float, size: int
) -> None:
    # After the loss the run has gone on with one rank, which fails in second 100.
    cluster = Cluster(1, later={40: 0, 101: 1, back_at_s: 2, 301: 1})
    run = resizing(cluster, 1, 2)
    assert run.next_size(()) == 1
    run.hear(WORD)
    cluster.now_s = 100
    while cluster.now_s < 300:
        run.look_between()
        cluster.pause(5)
    assert run.next_size(()) == size


def test_a_pause_asks_nobody_where_nothing_can_grow() -> None:
    cluster = Cluster(2)
    run = resizing(cluster, 1, 2)
    assert run.next_size(()) == 2
    cluster.now_s, cluster.num_asked = 50, 0
    run.look_between()
    assert cluster.num_asked == 0


def test_before_its_ranks_run_what_is_free_is_their_own() -> None:
    cluster = Cluster(1, later={50: 0, 60: 1})
    run = resizing(cluster, 1, 2)
    for _ in range(2):
        assert run.next_size(()) == 1
        assert first_request(run, cluster, for_s=500) is None
        cluster.now_s = 50
        run.hear(WORD)
        assert first_request(run, cluster, for_s=10) is None
        cluster.now_s = 0


def test_a_cluster_that_can_not_be_asked_is_left_as_it_is() -> None:
    cluster = Cluster(1, later={40: 0, 100: 1, 130: None, 134: 1})
    run = resizing(cluster, 1, 2)
    assert run.next_size(()) == 1
    cluster.now_s = 50
    run.hear(WORD)
    found = first_request(run, cluster, for_s=300)
    assert found is not None
    assert found[0] == 194


def test_the_cluster_is_asked_every_two_seconds_and_not_at_every_poll() -> None:
    cluster = Cluster(1, later={40: 0})
    run = resizing(cluster, 1, 2)
    run.next_size(())
    cluster.now_s, cluster.num_asked = 50, 0
    run.hear(WORD)
    first_request(run, cluster, for_s=100)
    assert cluster.num_asked == 50


def test_a_place_that_never_comes_is_given_up_soon_while_there_are_smaller_sizes_to_try() -> None:
    run = resizing(Cluster(1, later={100: 2}), 1, 2)
    assert run.schedule_timeout_s(300) == 60
    assert run.next_size(()) == 1
    assert run.schedule_timeout_s(300) == 300
    assert resizing(Cluster(2), 2).schedule_timeout_s(300) == 300


def test_a_size_that_had_no_place_is_not_asked_for_again_while_the_room_stays_as_it_is() -> None:
    # Eight devices are free, four on each of two nodes: no node has six, and only these are asked for.
    cluster, said = Cluster(8, later={300: 4, 1000: 1, 1010: 4}), list[str]()
    run = resizing(cluster, 4, 6, 8, said=said.append)
    assert run.next_size(()) == 8
    for larger, smaller in ((8, 6), (6, 4)):
        cluster.now_s += 60
        run.had_no_place()
        assert run.next_size(()) == smaller
        assert said.pop() == f"goes on with {smaller} ranks instead of {larger}"
    cluster.now_s = 300
    run.hear(WORD)
    assert first_request(run, cluster, for_s=600) is None
    cluster.now_s = 1000
    found = first_request(run, cluster, for_s=100)
    assert found == (1070, StopRequest(aim="move on", why="there is room for 8 ranks"))


def test_a_size_that_had_no_place_is_asked_for_again_once_another_room_has_stayed() -> None:
    cluster = Cluster(2, later={60: None, 61: 1, 100: 2})
    run = resizing(cluster, 1, 2)
    assert run.next_size(()) == 2
    cluster.now_s = 60
    run.had_no_place()
    assert run.next_size(()) == 1
    cluster.now_s = 61
    assert run.next_size(()) == 1
    for cluster.now_s, size in ((100, 1), (160, 2)):
        assert run.next_size(()) == size


def test_the_smallest_size_is_asked_for_although_it_had_no_place() -> None:
    cluster = Cluster(1)
    run = resizing(cluster, 1, 2)
    for _ in range(2):
        assert run.next_size(()) == 1
        run.had_no_place()


def test_a_ray_of_our_own_never_grows_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = RayExecutor(verbose=False, share_nodes=True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert executor.sizes((1, 2, 4, 8), group(devices=(6,))) == (4,)
    assert executor.sizes((8, 16), group(devices=(6,))) == (8, 16)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert executor.sizes((1, 2, 4, 8), group(devices=(6,))) == (1, 2, 4, 8)


def test_processes_that_are_there_are_the_size() -> None:
    executor = InlineExecutor(LauncherPlace(rank=0, world_size=2, local_rank=0))
    assert executor.sizes((1, 2, 4), group()) == (2,)
    assert executor.sizes((1, 4), group()) == (1, 4)
