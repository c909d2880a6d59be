"""Who keeps whose copies, and who brings what to whom."""

from collections import Counter
from random import Random

import pytest

from checkpointing.saving.peers import Move, Seat, keepers, missing, moves


def seats(text: str) -> list[Seat]:
    """A word for each rank: its node, and behind a colon its domain."""
    found = (word.partition(":") for word in text.split())
    return [Seat(node=node, domain=domain) for node, _, domain in found]


def test_each_host_keeps_the_next_ones_copies_rank_by_rank() -> None:
    assert keepers(seats("a a b b c c"), 1) == [(2,), (3,), (4,), (5,), (0,), (1,)]
    assert keepers(seats("a b c"), 2) == [(1, 2), (2, 0), (0, 1)]


def test_no_copy_lies_in_its_owners_failure_domain() -> None:
    assert keepers(seats("a:1 b:1 c:2 d:2"), 1) == [(2,), (3,), (0,), (1,)]
    assert keepers(seats("a:1 b:1"), 1) == [(), ()]
    assert keepers(seats("a:1 b"), 1) == [(1,), (0,)], "nobody has said that they fail together"


def test_one_host_keeps_no_copies_and_there_are_no_more_than_other_hosts() -> None:
    assert keepers(seats("a a a"), 1) == [(), (), ()]
    assert keepers(seats("a b"), 4) == [(1,), (0,)]
    assert keepers(seats("a b"), 0) == [(), ()]


def test_hosts_of_other_sizes_keep_all_ranks_of_one() -> None:
    assert keepers(seats("a a a b"), 1) == [(3,), (3,), (3,), (0,)]


def test_hosts_keep_equally_much_however_domains_lie() -> None:
    draw = Random(7)
    for _ in range(200):
        num_domains, size = draw.randint(2, 5), draw.randint(1, 4)
        words = [f"{domain}-{node}:{domain}" for domain in range(num_domains) for node in range(size)]
        draw.shuffle(words)
        found = keepers(seats(" ".join(words)), 1)
        kept = Counter(keeper for of_rank in found for keeper in of_rank)
        assert all(len(of_rank) == 1 for of_rank in found)
        assert max(kept.values()) <= 2, (words, found)


def test_of_ten_thousand_hosts_few_are_asked_whether_they_may_keep_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    may_keep_for = Seat.may_keep_for

    def counted(seat: Seat, other: Seat) -> bool:
        nonlocal asked
        asked += 1
        return may_keep_for(seat, other)

    monkeypatch.setattr(Seat, "may_keep_for", counted)
    racks = [Seat(node=str(number), domain=str(number // 16)) for number in range(10_000)]
    found = keepers(racks, 2)
    assert all(len({*of_rank}) == 2 for of_rank in found)
    assert asked < 40 * len(racks)


def test_each_host_gets_what_it_lacks_once_from_whoever_has_brought_least() -> None:
    everything = {0, 1, 2}
    found = moves(seats("a b b"), [{0, 2}, {1}, {1}], [everything] * 3)
    assert found == [
        Move(share=1, source=1, target=0),
        Move(share=0, source=0, target=1),
        Move(share=2, source=0, target=1),
    ]
    assert moves(seats("a b c"), [{0, 1}, {0, 1}, set()], [{0}, {1}, {0, 1}]) == [
        Move(share=0, source=0, target=2),
        Move(share=1, source=1, target=2),
    ]


def test_what_lies_nowhere_is_not_brought() -> None:
    assert moves(seats("a b"), [{0}, set()], [{0}, {1}]) == []


def test_what_a_host_lacks_is_what_its_ranks_load_and_none_of_them_has() -> None:
    held, needed = [{0}, {1}, {2}], [{0, 1, 2}, {0, 1}, {2}]
    assert [missing(node, seats("a a b"), held, needed) for node in "ab"] == [{2}, set()]
