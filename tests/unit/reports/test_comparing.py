"""Which sides are compared with each other, and what is said to differ between them."""

from collections import Counter
from random import Random

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.comparing import Unmatched, compare_groups, compare_sets
from reporting.analysis.findings import Comparison, Difference
from reporting.results.rows import Row
from tests.unit.result_rows import row, rows

SLOW = (990.0, 1000.0, 1010.0, 995.0, 1005.0)
FAST = tuple(1.1 * value for value in SLOW)


def groups(*found: Row) -> list[tuple[str, str, str]]:
    comparisons = compare_groups(summarise(found))
    return [(each.baseline, each.other, each.verdict) for each in comparisons]


def one(baseline: list[Row], other: list[Row]) -> Comparison:
    (found,) = compare_sets(baseline, other).comparisons
    return found


def differences(baseline: dict[str, object], other: dict[str, object]) -> tuple[Difference, ...]:
    return one([row(**baseline)], [row(**other)]).differences


def test_the_ratio_is_the_others_throughput_over_the_baselines() -> None:
    found = one(rows(*SLOW), rows(*FAST))
    assert found.ratio == pytest.approx(1.1)
    assert found.low
    assert found.high
    assert 1.0 < found.low < 1.1 < found.high < 1.2
    assert (found.p, found.p_adjusted) == (pytest.approx(2 / 252), pytest.approx(2 / 252))
    assert (found.verdict, found.cliffs_delta, found.num_baseline, found.num_other) == ("faster", 1.0, 5, 5)
    assert one(rows(*FAST), rows(*SLOW)).verdict == "slower"


def test_noise_within_the_runs_is_not_counted_twice() -> None:
    """A run's throughput holds it already."""
    noisy = (0.5, 1.0, 1.5, 2.0, 2.5)
    plain, known = (one(rows(*SLOW), rows(*FAST, raw_step_times=steps)) for steps in ((), noisy))
    assert (known.low, known.high) == (plain.low, plain.high)


def test_the_threshold_decides_what_is_equivalent() -> None:
    barely = [1.015 * value for value in SLOW]
    verdicts = [
        compare_sets(rows(*SLOW), rows(*barely), threshold).comparisons[0].verdict
        for threshold in (0.001, 0.05)
    ]
    assert verdicts == ["inconclusive", "equivalent"]


def test_of_every_two_groups_the_alphabetically_first_is_the_baseline() -> None:
    found = [*rows(*FAST, group="c"), *rows(*SLOW, group="a"), *rows(*SLOW, group="b")]
    assert groups(*found) == [("a", "b", "equivalent"), ("a", "c", "faster"), ("b", "c", "faster")]


def test_groups_are_compared_in_what_both_did() -> None:
    found = [*rows(*SLOW, group="a", world_size=2), *rows(*SLOW, group="b", world_size=4)]
    assert groups(*found) == []
    assert groups(*rows(*SLOW, group="a")) == []
    assert groups() == []


def test_what_one_side_failed_at_has_its_status_for_a_verdict_and_what_both_failed_at_is_left_out() -> None:
    failed = rows(None, None, group="a")
    assert groups(*failed, *rows(*SLOW, group="b")) == [("a", "b", "oom")]
    assert groups(*failed, *rows(None, group="b")) == []


def test_p_is_adjusted_over_all_comparisons() -> None:
    found = compare_groups(
        summarise(
            [
                *rows(*SLOW, group="a"),
                *rows(*FAST, group="b"),
                *rows(*SLOW, group="a", seq_len=128),
                *rows(*SLOW, group="b", seq_len=128),
            ]
        )
    )
    assert [each.p for each in found] == pytest.approx([2 / 252, 1.0])
    assert [each.p_adjusted for each in found] == pytest.approx([4 / 252, 1.0])


def test_the_same_cell_in_two_sweeps_is_pooled() -> None:
    other = [*rows(*FAST[:3], sweep="monday"), *rows(*FAST[3:], sweep="friday")]
    assert one(rows(*SLOW), other).num_other == 5


def test_of_a_run_only_the_newest_attempt_counts() -> None:
    other = [*rows(*FAST), row(1.0, run_id="again", attempt=1), row(1100.0, run_id="again", attempt=2)]
    assert (one(rows(*SLOW), other).num_other, one(rows(*SLOW), other).verdict) == (6, "faster")


def pairs_of_sets(baseline: list[Row], other: list[Row]) -> list[tuple[str, str]]:
    return [(each.baseline, each.other) for each in compare_sets(baseline, other).comparisons]


def test_sets_are_matched_by_group_where_they_share_one() -> None:
    both = [*rows(*SLOW, group="a"), *rows(*SLOW, group="b")]
    assert pairs_of_sets(both, both) == [("a", "a"), ("b", "b")]
    assert pairs_of_sets(both, rows(*SLOW, group="b")) == [("b", "b")]


def test_a_single_group_that_the_other_side_lacks_is_compared_with_all_of_them() -> None:
    both = [*rows(*SLOW, group="a"), *rows(*SLOW, group="b")]
    assert pairs_of_sets(rows(*SLOW, group="old"), both) == [("old", "a"), ("old", "b")]
    assert pairs_of_sets(both, rows(*SLOW, group="new")) == [("a", "new"), ("b", "new")]


def test_what_has_no_partner_is_told() -> None:
    baseline = [*rows(*SLOW), row(world_size=2), row(group="gone")]
    other = [*rows(*SLOW), row(world_size=4)]
    found = compare_sets(baseline, other)

    def told(unmatched: tuple[Unmatched, ...]) -> list[tuple[str, int]]:
        return [(each.group, each.subject.world_size) for each in unmatched]

    assert told(found.only_in_baseline) == [("gone", 1), ("nvidia", 2)]
    assert told(found.only_in_other) == [("nvidia", 4)]
    assert len(found.comparisons) == 1


def test_fair_sides_differ_in_nothing() -> None:
    assert one(rows(*SLOW, started_at="monday"), rows(*FAST, started_at="friday")).differences == ()


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("driver", "driver"),
        ("torch", "torch"),
        ("collectives", "collectives"),
        ("device_name", "device name"),
        ("commit", "commit"),
        ("source_digest", "source digest"),
        ("python", "python"),
        ("platform", "platform"),
        ("vendor", "vendor"),
        ("sync", "sync"),
        ("isolation", "isolation"),
        ("warmup_rule", "warmup rule"),
        ("timing_unit", "timing unit"),
        ("tier", "tier"),
    ],
)
def test_whatever_else_differed_is_listed(column: str, what: str) -> None:
    assert differences({column: "one"}, {column: "two"}) == (
        Difference(what=what, baseline="one", other="two"),
    )


@pytest.mark.parametrize("column", ["seed", "steps", "parameters", "device_memory_bytes"])
def test_numbers_that_differed_are_listed(column: str) -> None:
    assert [each.baseline for each in differences({column: 1}, {column: 2})] == ["1"]


@pytest.mark.parametrize("column", ["spread", "simulated", "imported"])
def test_what_was_so_on_one_side_only_is_listed(column: str) -> None:
    assert [(each.what, each.other) for each in differences({column: False}, {column: True})] == [
        (column, "True")
    ]


def test_packages_variables_and_optimizer_are_listed_one_by_one() -> None:
    found = differences(
        {"packages": (("numpy", "2.0"), ("ray", "2.0")), "variables": (("NCCL_DEBUG", "INFO"),)},
        {"packages": (("numpy", "2.0"), ("ray", "2.1")), "optimizer": (("lr", 0.1),)},
    )
    assert [(each.what, each.baseline, each.other) for each in found] == [
        ("variable NCCL_DEBUG", "INFO", "unknown"),
        ("optimizer lr", "unknown", "0.1"),
        ("package ray", "2.0", "2.1"),
    ]


def test_the_likeliest_cause_is_listed_first() -> None:
    found = differences(
        {
            "python": "3.11.7",
            "power_cap_watts": 500.0,
            "collectives": "nccl 2.27.3",
            "fingerprint": (("OS", "Debian 12"), ("libcublasLt", "12.8.4"), ("huge pages", "always")),
        },
        {
            "python": "3.11.8",
            "power_cap_watts": 700.0,
            "collectives": "nccl 2.28.1",
            "fingerprint": (("OS", "Debian 13"), ("libcublasLt", "13.0.1"), ("huge pages", "never")),
        },
    )
    assert [each.what for each in found] == [
        "power cap watts", "libcublasLt", "collectives", "huge pages", "OS", "python",
    ]  # fmt: skip


def test_a_cause_is_known_by_the_beginning_of_its_name() -> None:
    """A package is not the torch that it is named after."""
    found = differences(
        {"packages": (("with-torch", "1"),), "fingerprint": (("image", "a"),)},
        {"packages": (("with-torch", "2"),), "fingerprint": (("image", "b"),)},
    )
    assert [each.what for each in found] == ["image", "package with-torch"]


def test_sides_that_failed_in_two_ways_have_that_of_the_side_that_is_judged() -> None:
    (found,) = compare_sets([row(None, status="oom")], [row(None, status="crash")]).comparisons
    assert found.verdict == "crash"


def test_results_of_older_versions_lack_a_fingerprint_and_not_each_of_its_facts() -> None:
    facts = (("OS", "Debian 12"), ("libcublasLt", "12.8.4"))
    assert differences({}, {"fingerprint": facts}) == (
        Difference(what="fingerprint", baseline="unknown", other="recorded"),
    )
    assert differences({"fingerprint": facts}, {"fingerprint": facts[:1]}) == (
        Difference(what="libcublasLt", baseline="12.8.4", other="unknown"),
    )


def test_values_that_changed_within_a_side_are_all_named() -> None:
    found = one([row(driver="1"), row(driver="2")], [row(driver="2"), row(driver=None)]).differences
    assert found == (Difference(what="driver", baseline="1, 2", other="2, unknown"),)


def test_a_side_without_numbers_says_why_and_differs_in_nothing() -> None:
    found = one(rows(*SLOW, driver="1"), rows(None, None, driver="2"))
    assert (found.baseline_status, found.other_status, found.num_other) == ("ok", "oom", 0)
    assert (found.ratio, found.p, found.verdict, found.differences) == (None, None, "oom", ())
    assert found.failures == "oom in nvidia"


def test_the_same_runs_are_equivalent_however_few() -> None:
    few = rows(900.0, 1100.0)
    assert one(few, few).verdict == "equivalent"
    assert one(few, rows(900.0, 1100.0)).verdict == "too few repeats"


def test_a_failed_run_does_not_make_a_side_differ() -> None:
    """It ended before it could say what it ran on."""
    assert one([row(driver="1"), row(None)], [row(driver="1")]).differences == ()


def test_the_same_rows_in_another_order_say_the_same() -> None:
    """To the last digit."""
    baseline = [*rows(*SLOW), *rows(*SLOW, world_size=2)]
    other = [*rows(*FAST), *rows(*FAST, world_size=2)]
    assert compare_sets(baseline[::-1], other[::-1]) == compare_sets(baseline, other)


def _in_sessions(group: str, *sessions: tuple[float, ...]) -> list[Row]:
    return [
        row(value, group=group, session=number, run_id=f"{group}-{number}-{place}")
        for number, values in enumerate(sessions, start=1)
        for place, value in enumerate(values)
    ]


def _compared(*found: Row) -> Comparison:
    (only,) = compare_groups(summarise(found))
    return only


def test_with_two_sessions_a_side_the_interval_is_over_sessions_too() -> None:
    """Within each session nothing varies; between them a machine gains or loses 2 %."""
    steady = (1000.0, 1001.0, 999.0, 1000.0, 1000.5)
    slower = tuple(0.98 * value for value in steady)
    faster = tuple(1.01 * value for value in steady)
    once = _compared(*_in_sessions("a", steady), *_in_sessions("b", faster))
    twice = _compared(*_in_sessions("a", steady, slower), *_in_sessions("b", faster, steady))
    assert (once.verdict, once.baseline_sessions, once.other_sessions) == ("equivalent", 1, 1)
    assert (twice.verdict, twice.baseline_sessions, twice.other_sessions) == ("inconclusive", 2, 2)
    assert twice.low and twice.high and twice.low < 0.97 and twice.high > 1.06
    one_sided = _compared(*_in_sessions("a", steady, slower), *_in_sessions("b", faster))
    assert (one_sided.baseline_sessions, one_sided.other_sessions) == (2, 1)
    assert one_sided.high and one_sided.high < 1.06


def test_sessions_that_agree_by_luck_make_nothing_surer_than_its_runs_do() -> None:
    noisy = (950.0, 1000.0, 1050.0, 980.0, 1020.0)
    other = tuple(1.03 * value for value in noisy)
    pooled = _compared(*_in_sessions("a", noisy + noisy), *_in_sessions("b", other + other))
    split = _compared(*_in_sessions("a", noisy, noisy), *_in_sessions("b", other, other))
    assert (split.low, split.high) == (pooled.low, pooled.high)
    nearly = tuple(1.0001 * value for value in other)
    split = _compared(*_in_sessions("a", noisy, noisy), *_in_sessions("b", other, nearly))
    pooled = _compared(*_in_sessions("a", noisy + noisy), *_in_sessions("b", other + nearly))
    assert split.low == pytest.approx(pooled.low) and split.high == pytest.approx(pooled.high)


def test_rows_of_two_sweeps_are_of_two_sessions() -> None:
    found = _compared(*rows(*SLOW, sweep="x"), *rows(*SLOW, sweep="y"), *rows(*FAST, group="z", sweep="x"))
    assert (found.baseline_sessions, found.other_sessions) == (2, 1)


@pytest.mark.parametrize(("num_sessions", "edge", "most_false"), [(2, 1.0, 0.05), (3, 1.0, 0.05)])
def test_days_that_differ_are_not_taken_for_groups_that_differ(
    num_sessions: int, edge: float, most_false: float
) -> None:
    """Simulated, 600 trials each, five runs a session, 1 % noise between sessions and 1 % between runs:
    called different 31 % with one session, 2.0 % with two, 3.5 % with three, where runs alone would say 20
    and 18 %. The interval holds the truth in 98 and 96 %. +5 % is found in 92 % with three sessions.
    """
    random = Random(3)
    verdicts = Counter[str]()
    for _ in range(150):
        found = []
        for group, speed in (("a", 1.0), ("b", edge)):
            sessions = [random.gauss(0, 0.01) for _ in range(num_sessions)]
            found += _in_sessions(
                group,
                *(
                    tuple(1000 * speed * (1 + day + random.gauss(0, 0.01)) for _ in range(5))
                    for day in sessions
                ),
            )
        verdicts[_compared(*found).verdict] += 1
    assert verdicts["faster"] + verdicts["slower"] <= most_false * 150
