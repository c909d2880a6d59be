"""Who is at fault, decided from what ranks hold and computed: every case of up to four ranks, and others."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from jobs.training.integrity.comparison import Finding, Look, described, judge

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
    assert said(sent) == f"{who} receives other samples than were sent to all; {never}"
    two = [HEALTHY, gradients("x", "x")]
    assert described(verdict(*two), two, step=1, clean_step=None) == (
        "before step 1 the 2 ranks have other gradients for the same samples, and no majority says which is "
        f"at fault; {never}"
    )
