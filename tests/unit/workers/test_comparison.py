"""Who is at fault, decided from what ranks hold and computed: every case of up to four ranks, and others."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations, count, product
from random import Random

import pytest

from jobs.training.integrity.comparison import Exchange, Finding, Look, described, judge, judge_kept, together

SEED = 20261129
HEALTHY = Look(
    device="CPU of a",
    node="a",
    kind="CPU",
    samples="s",
    held={"all": "w"},
    computed={"loss": ("l", "l"), "gradients": ("g", "g")},
)


def gradients(*values: str) -> Look:
    return replace(HEALTHY, computed={"loss": ("l",) * len(values), "gradients": values})


def verdict(*looks: Look, repeats: bool = True, apart: tuple[str, ...] = ()) -> Finding:
    return judge(looks, repeats=repeats, apart=apart)


@pytest.mark.parametrize("num_ranks", range(1, 6))
@pytest.mark.parametrize("repeats", [True, False])
def test_ranks_that_compute_alike_are_clean(num_ranks: int, repeats: bool) -> None:
    assert verdict(*[HEALTHY] * num_ranks, repeats=repeats) == Finding()


@pytest.mark.parametrize("what", ["samples", "weights", "loss", "gradients"])
@pytest.mark.parametrize(("num_ranks", "bad"), [(n, bad) for n in (3, 4, 5) for bad in range(n)])
@pytest.mark.parametrize("repeats", [True, False])
def test_of_three_or_more_the_one_that_differs_is_at_fault(
    what: str, num_ranks: int, bad: int, repeats: bool
) -> None:
    otherwise = {
        "samples": replace(HEALTHY, samples="x"),
        "weights": replace(HEALTHY, held={"all": "x"}),
        "loss": replace(HEALTHY, computed={**HEALTHY.computed, "loss": ("x", "x")}),
        "gradients": gradients("x", "x"),
    }[what]
    looks = [otherwise if rank == bad else HEALTHY for rank in range(num_ranks)]
    assert verdict(*looks, repeats=repeats) == Finding(faulty={bad: (what,)})


def test_every_case_of_up_to_four_ranks_blames_those_without_the_majority_and_nobody_else() -> None:
    """Each rank computes one of three values, each time the same; the expected is counted another way."""
    num_cases = 0
    for num_ranks in range(1, 5):
        for values in product("abc", repeat=num_ranks):
            finding = verdict(*(gradients(value, value) for value in values))
            counts = Counter(values)
            usual = [value for value in counts if counts[value] > num_ranks - counts[value]]
            blamed = {rank for rank, value in enumerate(values) if usual and value not in usual}
            assert set(finding.faulty) == blamed, values
            assert finding.undecided == (() if usual else ("gradients",)), values
            assert not finding.varying
            num_cases += 1
    assert num_cases == 3 + 9 + 27 + 81


def test_two_that_differ_are_both_in_doubt() -> None:
    finding = verdict(HEALTHY, gradients("x", "x"))
    assert finding == Finding(undecided=("gradients",))
    assert not finding.is_clean


def test_who_differs_from_itself_is_at_fault_where_computations_repeat() -> None:
    assert verdict(HEALTHY, gradients("g", "x")) == Finding(faulty={1: ("gradients",)})
    assert verdict(HEALTHY, HEALTHY, gradients("x", "g")) == Finding(faulty={2: ("gradients",)})


def test_nobody_is_blamed_for_differing_from_itself_where_nothing_is_promised() -> None:
    varying = Finding(varying=("gradients",))
    assert varying.is_clean
    assert verdict(HEALTHY, HEALTHY, gradients("g", "x"), repeats=False) == varying


def test_most_ranks_that_differ_from_themselves_are_not_deterministic_whatever_was_promised() -> None:
    assert verdict(gradients("x", "y")) == Finding(varying=("gradients",))
    looks = [gradients("a", "b"), gradients("c", "d"), HEALTHY]
    assert verdict(*looks) == Finding(varying=("gradients",))


def test_what_is_not_deterministic_is_not_compared_any_more_but_all_else_is() -> None:
    bad = replace(gradients("x", "y"), held={"all": "other"})
    assert verdict(HEALTHY, bad, HEALTHY, apart=("gradients",)) == Finding(faulty={1: ("weights",)})


def test_another_kind_of_device_may_compute_otherwise_but_holds_the_same_weights() -> None:
    older = replace(gradients("o", "o"), kind="an older CPU")
    assert verdict(HEALTHY, HEALTHY, older) == Finding()
    assert verdict(HEALTHY, HEALTHY, replace(older, held={"all": "x"})) == Finding(faulty={2: ("weights",)})


def test_ranks_that_hold_other_parts_are_not_compared_by_them() -> None:
    looks = [replace(HEALTHY, held={f"part {rank}": f"w{rank}"}) for rank in range(4)]
    assert verdict(*looks) == Finding()
    # Two replicas of two parts each.
    replicas = [replace(HEALTHY, held={f"part {rank % 2}": f"w{rank}"}) for rank in (0, 1, 2, 1)]
    assert verdict(*replicas) == Finding(undecided=("weights",))


Way = tuple[int, int]


def linked(num_ranks: int, *rounds: Collection[Way], wrong_sums: Collection[int] = ()) -> list[Look]:
    """Of each round the ways, from a sender to a receiver, on which messages arrived wrong."""

    def exchange(ways: Collection[Way], rank: int) -> Exchange:
        wrong = tuple(sender for sender, receiver in ways if receiver == rank)
        return Exchange(wrong_senders=wrong, is_sum_right=rank not in wrong_sums)

    return [
        replace(HEALTHY, exchanges=tuple(exchange(ways, rank) for ways in rounds))
        for rank in range(num_ranks)
    ]


LINK = ("messages",)


@pytest.mark.parametrize("num_ranks", range(1, 6))
def test_messages_and_sums_that_arrive_as_they_were_given_are_clean(num_ranks: int) -> None:
    assert verdict(*linked(num_ranks, (), ())) == Finding()


def test_every_set_of_wrong_ways_between_three_blames_the_one_end_that_all_of_them_share() -> None:
    """Each set of ways in one round; the expected is counted another way."""
    between = [(sender, receiver) for sender, receiver in product(range(3), repeat=2) if sender != receiver]
    num_cases = 0
    for size in range(1, len(between) + 1):
        for ways in combinations(between, size):
            shared = [
                rank
                for rank in range(3)
                if len(ways) > 1
                and (all(way[0] == rank for way in ways) or all(way[1] == rank for way in ways))
            ]
            expected = Finding(faulty={shared[0]: LINK}) if shared else Finding(undecided=LINK)
            assert verdict(*linked(3, ways)) == expected, ways
            num_cases += 1
    assert num_cases == 2**6 - 1


def test_wrong_ways_of_several_rounds_are_taken_together() -> None:
    assert verdict(*linked(4, {(0, 2)}, {(3, 2)})) == Finding(faulty={2: LINK})
    assert verdict(*linked(4, {(2, 0)}, {(2, 0)})) == Finding(undecided=LINK)


def test_who_gets_even_its_own_message_wrong_is_at_fault() -> None:
    assert verdict(*linked(3, {(1, 1)})) == Finding(faulty={1: LINK})
    assert verdict(*linked(2, {(1, 1)})) == Finding(faulty={1: LINK})


def test_who_alone_gets_a_wrong_sum_is_at_fault_and_nobody_if_most_get_one() -> None:
    assert verdict(*linked(3, (), wrong_sums={2})) == Finding(faulty={2: LINK})
    # The message that it got wrong besides has an explanation by that.
    assert verdict(*linked(3, {(0, 2)}, wrong_sums={2})) == Finding(faulty={2: LINK})
    assert verdict(*linked(3, (), wrong_sums={0, 1, 2})) == Finding(undecided=LINK)
    assert verdict(*linked(2, (), wrong_sums={1})) == Finding(undecided=LINK)
    # Whoever sent what makes them wrong is.
    assert verdict(*linked(3, {(1, 0), (1, 2)}, wrong_sums={0, 1, 2})) == Finding(faulty={1: LINK})


def test_a_transport_that_gives_the_same_zeros_to_all_is_nobody_s_fault() -> None:
    everywhere = set(product(range(4), repeat=2))
    assert verdict(*linked(4, everywhere, wrong_sums=range(4))) == Finding(undecided=LINK)


@pytest.mark.parametrize("num_ranks", range(1, 5))
def test_who_does_not_keep_its_weights_is_at_fault_unless_most_do_not(num_ranks: int) -> None:
    for are_kept in product([True, False], repeat=num_ranks):
        lost = [rank for rank, is_kept in enumerate(are_kept) if not is_kept]
        finding = judge_kept(are_kept)
        if len(lost) > num_ranks - len(lost):
            assert finding == Finding(undecided=("kept weights",))
        else:
            assert finding == Finding(faulty=dict.fromkeys(lost, ("kept weights",)))


def test_nobody_is_blamed_in_100000_simulated_checks_of_healthy_ranks_whose_computations_may_vary() -> None:
    """Each computation comes out otherwise with some probability, never twice alike, as sums in a race do."""
    dice, fresh = Random(SEED), count()
    num_varying = 0
    for _ in range(100_000):
        num_ranks, share = dice.randrange(1, 9), dice.choice([0, 1e-3, 0.1, 1])

        def looks(times: int, num_ranks: int = num_ranks, share: float = share) -> list[Look]:
            return [
                gradients(*(f"race {next(fresh)}" if dice.random() < share else "g" for _ in range(times)))
                for _ in range(num_ranks)
            ]

        finding = verdict(*looks(2), repeats=False)
        if not finding.is_clean:
            finding = verdict(*looks(5), repeats=False)
        assert finding.is_clean, (SEED, num_ranks, share)
        num_varying += bool(finding.varying)
    assert num_varying > 25_000


def test_a_difference_that_does_not_come_again_is_one_where_computations_repeat_and_over_links() -> None:
    healthy, once = [HEALTHY] * 3, [HEALTHY, gradients("g", "x"), HEALTHY]
    assert judge(together(once, healthy, repeats=True), repeats=True) == Finding(faulty={1: ("gradients",)})
    assert judge(together(once, healthy, repeats=False), repeats=False) == Finding()
    sum_once = linked(3, (), wrong_sums={2})
    for repeats in (True, False):
        looks = together(sum_once, linked(3, ()), repeats=repeats)
        assert judge(looks, repeats=repeats) == Finding(faulty={2: LINK})


def test_one_computation_of_a_hundred_is_seen_in_one_check_of_fifty_and_then_always_located() -> None:
    """As docs/integrity.md counts: a check has two computations of each rank."""
    dice, share, num_checks = Random(SEED), 0.01, 30_000
    num_seen = num_located = 0

    def looks(num_ranks: int, times: int) -> list[Look]:
        bad = gradients(*("x" if dice.random() < share else "g" for _ in range(times)))
        return [gradients(*"g" * times), bad, *[gradients(*"g" * times)] * (num_ranks - 2)]

    for _ in range(num_checks):
        num_ranks = dice.randrange(2, 9)
        first = looks(num_ranks, 2)
        if not verdict(*first).is_clean:
            num_seen += 1
            finding = verdict(*together(first, looks(num_ranks, 5), repeats=True))
            num_located += finding == Finding(faulty={1: ("gradients",)})
    assert num_seen / num_checks == pytest.approx(1 - (1 - share) ** 2, rel=0.1)
    assert num_located == num_seen


def test_the_words_name_rank_device_and_what_is_behind_it() -> None:
    node = replace(gradients("x", "x"), device="H100, number 3 of node-7")
    held = replace(node, held={"all": "x"})
    sent = replace(held, samples="x")

    def said(look: Look, clean_step: int | None = None) -> str:
        looks = [HEALTHY, look, HEALTHY]
        return described(verdict(*looks), looks, step=21, clean_step=clean_step)

    who = "before step 21: rank 1 (H100, number 3 of node-7)"
    never = "no check of this attempt was clean"
    assert said(node) == f"{who} computes other gradients than the others from the same samples; {never}"
    assert said(held, 10) == f"{who} holds other weights or moments than the others; clean after step 10"
    assert said(sent) == (
        f"{who} sends or gets other messages, samples or sums than were given: its link; {never}"
    )
    kept = described(judge_kept([True, False, True]), [HEALTHY, node, HEALTHY], step=21, clean_step=10)
    assert kept == (
        f"{who} holds weights or moments that changed although nothing updated them; clean after step 10"
    )
    whole = {"parameters": ("p", "p"), "loss": ("l", "l")}
    looks = [replace(HEALTHY, computed={**whole, "parameters": (one, one)}) for one in "pxp"]
    assert "works with other parameters than the others" in described(
        verdict(*looks), looks, step=21, clean_step=None
    )
    two = [HEALTHY, gradients("x", "x")]
    assert described(verdict(*two), two, step=1, clean_step=None) == (
        "before step 1 the 2 ranks have other gradients for the same samples, and no majority says which is "
        f"at fault; {never}"
    )
