"""Which pairs of nodes the doctor tries, at once and one after the other, and what it makes of them."""

from itertools import combinations

import pytest

from jobs.doctor.cross_node_checks import links
from jobs.doctor.examination import Finding
from jobs.doctor.pairing import MOST_FOR_ALL_PAIRS, rounds
from tests.unit.examinations import pair


@pytest.mark.parametrize("number", range(3, MOST_FOR_ALL_PAIRS + 1))
def test_every_pair_is_tried_once_in_as_few_rounds_as_can_be(number: int) -> None:
    turns = list(rounds(range(number)))
    assert len(turns) == number - 1 + number % 2
    for turn in turns:
        assert len({node for one in turn for node in one}) == 2 * len(turn)
    assert sorted(tuple(sorted(one)) for turn in turns for one in turn) == list(
        combinations(range(number), 2)
    )


@pytest.mark.parametrize("number", [MOST_FOR_ALL_PAIRS + 1, MOST_FOR_ALL_PAIRS + 2, 1000])
def test_of_very_many_nodes_each_tries_its_neighbours_in_three_rounds_at_most(number: int) -> None:
    turns = list(rounds(range(number)))
    assert len(turns) == 2 + number % 2
    for turn in turns:
        assert len({node for one in turn for node in one}) == 2 * len(turn)
    found = sorted(one for turn in turns for one in turn)
    assert found == [(node, (node + 1) % number) for node in range(number)]


@pytest.mark.parametrize("number", range(3))
def test_two_nodes_are_the_group_itself(number: int) -> None:
    assert list(rounds(range(number))) == []


def findings_of(rates: dict[str, float | str]) -> list[Finding]:
    """``rates`` by pairs of one letter each."""
    return list(links([pair(one, other, rate) for (one, other), rate in rates.items()]))


def test_a_link_below_a_third_of_the_median_is_named() -> None:
    assert findings_of({"ab": 30, "ac": 10.1, "bc": 31}) == []
    (finding,) = findings_of({"ab": 30, "ac": 9, "bc": 31})
    assert (finding.level, finding.subject) == ("warning", "nvidia")
    assert finding.found == "links over nccl are slow beside the usual one: a - c at 30%"


def test_a_node_that_reaches_no_other_is_named_alone() -> None:
    (finding,) = findings_of({"ab": "no answer", "bc": "no answer", "ac": 30, "cd": 30, "ad": 30, "bd": "no"})
    assert finding.level == "failed"
    assert finding.found == "reaches no other node over nccl: b"


def test_two_nodes_that_do_not_reach_each_other_are_named_together_with_the_reason() -> None:
    (finding,) = findings_of({"ab": 30, "bc": "no answer in time", "ac": 30})
    assert finding.found == "nodes do not reach each other over nccl: b - c (no answer in time)"


def test_where_nobody_reaches_anybody_all_pairs_are_named() -> None:
    (finding,) = findings_of(dict.fromkeys(("ab", "bc", "ac"), "refused"))
    assert finding.found.startswith("nodes do not reach each other over nccl: a - b (refused), b - c")
