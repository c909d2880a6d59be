"""Nodes that did not reach each other: they are tried again, later each time, and used again once they do."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pytest

from jobs.execution.outcomes import Setback, StoreAway
from jobs.recovery.loop import keep_trying
from jobs.recovery.parted_nodes import PartedNodes
from jobs.recovery.policy import FailedAttempt, Pair, Policy, Retry, RollBack, left_out

MIN_S = 60.0
AB = frozenset("ab")


@dataclass
class Nodes:
    """``broken`` is what each try finds; ``asked`` has of which nodes and when."""

    history: list[FailedAttempt] = field(default_factory=list)
    broken: Collection[Pair] | None = ()
    now_s: float = 1000.0
    asked: list[tuple[float, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parted = PartedNodes(
            history=lambda: self.history,
            unreached=self._unreached,
            say=self.said.append,
            clock=lambda: self.now_s,
            mended={},
        )

    def part(self, blamed: str, nodes: str = "ab") -> None:
        self.history.append(
            FailedAttempt(
                term=len(self.history) + 1,
                cause="partition",
                reason="",
                ended_s=self.now_s,
                nodes=tuple(blamed),
                all_nodes=tuple(nodes),
            )
        )

    def out_after(self, for_s: float) -> str:
        """The nodes that are left out after so long, in which it is looked each second, as a driver does."""
        end, found = self.now_s + for_s, ""
        while self.now_s < end:
            self.now_s += 1
            found = "".join(self.parted.still(left_out(self.history, self.parted.mended)))
        return found

    def _unreached(self, nodes: Sequence[str]) -> Collection[Pair] | None:
        self.asked.append((self.now_s, "".join(nodes)))
        return self.broken


def test_a_node_is_used_again_ten_minutes_later_if_it_is_reached_then() -> None:
    nodes = Nodes()
    nodes.part("b")
    assert nodes.out_after(10 * MIN_S - 1) == "b"
    assert nodes.asked == []
    assert nodes.out_after(MIN_S) == ""
    assert [who for _, who in nodes.asked] == ["ab"]
    assert nodes.said == ["b: reached again, and no longer left out"]
    assert nodes.out_after(3600) == "" and len(nodes.asked) == 1


@pytest.mark.parametrize("broken", [{AB}, None], ids=["not reached", "not all answer"])
def test_what_is_not_seen_to_be_mended_stays_left_out_and_is_tried_once_a_minute(
    broken: Collection[Pair] | None,
) -> None:
    nodes = Nodes(broken=broken)
    nodes.part("b")
    assert nodes.out_after(40 * MIN_S) == "b"
    assert 30 <= len(nodes.asked) <= 31
    nodes.broken = ()
    assert nodes.out_after(MIN_S) == ""


def test_each_further_time_it_takes_twice_as_long() -> None:
    nodes = Nodes()
    for minutes in (10, 20, 40):
        nodes.part("b")
        assert nodes.out_after((minutes - 1) * MIN_S) == "b"
        assert nodes.out_after(2 * MIN_S) == ""


def test_of_a_node_that_reaches_some_again_and_others_not_the_broken_way_counts() -> None:
    nodes = Nodes(broken={frozenset("bc")})
    nodes.part("b", "abc")
    assert nodes.out_after(20 * MIN_S) == "c"
    assert nodes.said == ["b: reached again, and no longer left out"]


@dataclass
class Tries:
    """The consequences of attempts; ``without`` has what each attempt was to leave out."""

    history: list[FailedAttempt]
    mended: dict[Pair, float]
    groups: tuple[str, ...] = ()
    without: list[tuple[str, ...]] = field(default_factory=list)
    told: list[tuple[str, ...]] = field(default_factory=list)

    def attempt(self, without: tuple[str, ...]) -> str | Setback:
        self.without.append(without)
        return "done" if len(self.without) == 2 else StoreAway(reason="away")

    def failed(self, setback: Setback) -> None:
        self.history.append(replace(self.history[0], cause="store", nodes=(), all_nodes=()))

    def give_up(self, setback: Setback, why: str) -> str:
        raise NotImplementedError

    def go_on(self, setback: Setback, move: Retry | RollBack) -> None:
        self.told.append(move.without)


@pytest.mark.parametrize(("mended", "without"), [({}, ("b",)), ({AB: 2000.0}, ())])
def test_what_is_said_and_done_after_a_failure_knows_what_was_mended(
    mended: dict[Pair, float], without: tuple[str, ...]
) -> None:
    nodes = Nodes()
    nodes.part("b")
    tries = Tries(nodes.history, mended)
    assert keep_trying(tries.attempt, tries, Policy()) == "done"
    assert tries.without == [without, without]
    assert tries.told == [without]


def test_who_is_left_out_for_dying_stays_so() -> None:
    nodes = Nodes()
    for term in (1, 2):
        nodes.history.append(
            FailedAttempt(
                term=term,
                cause="worker died",
                reason="",
                ended_s=nodes.now_s,
                durable_step=term,
                nodes=("b",),
                all_nodes=("a", "b"),
            )
        )
    assert nodes.out_after(20 * MIN_S) == "b"
    assert nodes.asked == []
