"""What both reports say in words: numbers, machines, what a strategy is good for, and what is shown."""

from dataclasses import replace
from typing import Any

import pytest

from reporting.analysis.findings import CellSummary, Estimate
from reporting.analysis.formatting import (
    clean,
    duration,
    estimate,
    fraction,
    gigabytes,
    joined,
    moment,
    number,
    probability,
    short,
    winner,
)
from reporting.analysis.method import how_to_repeat
from reporting.analysis.patterns import patterns
from reporting.analysis.selection import cells_shown, failures, most_relevant
from reporting.analysis.sides.environments import facts
from reporting.results.rows import Row
from tests.unit.example_findings import example_findings, findings

EXAMPLE = example_findings()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0, "0"),
        (8369.4557, "8,369"),
        (123456789.0, "123,456,789"),
        (0.48939861, "0.489"),
        (13.968, "14.0"),
        (999.6, "1,000"),
        (-0.25, "-0.250"),
        (1.67389e-05, "1.67e-05"),
    ],
)
def test_a_number_has_three_digits_that_count_or_more(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (4e-6, "4.00 µs"),
        (0.0305, "30.5 ms"),
        (1.5, "1.50 s"),
        (300, "5.00 min"),
        (86_400, "24.0 h"),
        (None, "–"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float | None, shown: str) -> None:
    assert duration(seconds).replace("\u202f", " ") == shown


def test_numbers_carry_their_units_and_intervals() -> None:
    found = Estimate(median=8369.4, low=8300.2, high=8400.9, cv=0.01, num_runs=5)
    assert estimate(found) == "8,369 [8,300, 8,401]"
    assert estimate(replace(found, low=None, high=None, num_runs=1)) == "8,369"
    assert gigabytes(13.96808448).replace("\u202f", " ") == "13.97 GB"
    assert fraction(0.3374).replace("\u202f", " ") == "33.7 %"
    assert (probability(0.0079), probability(0.0004), probability(None)) == ("0.008", "< 0.001", "–")


@pytest.mark.parametrize(
    ("iso", "shown"),
    [
        ("2026-11-20T18:04:11Z", "2026-11-20 18:04 UTC"),
        ("2026-01-02T03:04:05.678+00:00", "2026-01-02 03:04 UTC"),
        ("<soon>", "<soon>"),
        (None, "–"),
    ],
)
def test_a_moment_is_told_to_the_minute(iso: str | None, shown: str) -> None:
    assert moment(iso) == shown


def test_a_long_name_is_cut_and_stays_on_one_line() -> None:
    assert short("a\n b\tc") == "a b c"
    assert short("x" * 500, 10) == "xxxxxxxxx…"
    assert short("  ") == short(None) == "–"
    assert clean("a\x00b\ud800\u202fc\n") == "a\ufffdb?\u202fc\n"
    assert clean("a\u202eb\u2066\u200b\ufeff\u061c") == "a\ufffdb\ufffd\ufffd\ufffd\ufffd"
    assert joined(["a", "b", "c"], most=2) == "a, b and 1 more"


def test_the_winner_is_named_with_a_ratio_above_one_whichever_side_it_is() -> None:
    faster, slower = (
        next(one for one in EXAMPLE.comparisons if one.verdict == verdict) for verdict in ("faster", "slower")
    )
    assert winner(replace(faster, ratio=1.25)) == "amd by 1.250×"
    assert winner(replace(slower, ratio=0.8)) == "nvidia by 1.250×"
    assert winner(replace(faster, verdict="inconclusive")) == "inconclusive"


def row(group: str, **changes: Any) -> Row:
    return Row(source="result.json", group=group, **changes)


def test_what_differs_between_groups_is_marked_and_what_only_one_knows_is_not() -> None:
    rows = [
        row("a", driver="1", torch="2", packages=(("ray", "2.60"), ("numpy", "2.4"))),
        row("a", driver="1"),
        row("b", driver="2", torch="2", packages=(("ray", "2.61"),)),
    ]
    found = {fact.name: (fact.values, fact.differs) for fact in facts(rows)}
    assert found == {
        "driver": (("1", "2"), True),
        "torch": (("2", "2"), False),
        "numpy": (("2.4", "–"), False),
        "ray": (("2.60", "2.61"), True),
    }


def test_a_group_that_is_not_the_same_within_itself_shows_all_that_it_had() -> None:
    (fact,) = facts([row("a", driver="2"), row("a", driver="1"), row("b", driver="1")])
    assert (fact.values, fact.differs) == (("1, 2", "1"), True)


def cell(strategy: str, speed: float | None, memory: float | None, **subject: Any) -> CellSummary:
    found = EXAMPLE.cells[0]
    told = speed and Estimate(median=speed, low=None, high=None, cv=None, num_runs=1)
    return replace(
        found,
        cell_id=f"{strategy} {subject}",
        subject=replace(found.subject, strategy=strategy, **subject),
        tokens_per_sec=told or None,
        peak_vram_gb=memory,
    )


def named(*cells: CellSummary) -> dict[str, str]:
    return {found.cell.subject.strategy: found.name for found in patterns(cells)}


def test_the_older_documents_patterns_come_out_of_their_numbers() -> None:
    found = patterns([
        cell("ddp", 12_220, 13.97),
        cell("fsdp", 9_424, 11.2),
        cell("zero2", 18_147, 10.47),
        cell("zero3", 15_977, 9.67),
    ])  # fmt: skip
    assert [(one.cell.subject.strategy, one.name) for one in found] == [
        ("zero2", "High throughput, medium memory"),
        ("zero3", "Low memory at a price"),
        ("ddp", "Beaten"),
        ("fsdp", "Beaten"),
    ]
    assert found[0].advice == "Needs 8.3\u202f% more memory than zero3: take it while the model fits."
    assert found[1].advice == "Gives up 12.0\u202f% of zero2's throughput: take it where others don't fit."
    assert "zero2 is better" in found[2].advice


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ([("b", 90, 20)], "Fastest and lightest"),
        ([("b", 120, 20), ("c", 80, 5)], "In between"),
        ([("b", 101, 10.1)], "Fastest and lightest"),
        ([("b", 110, 10)], "Beaten"),
        ([("b", 100, 9)], "Beaten"),
        ([("b", 110, 15)], "Low memory at a price"),
        ([("b", 90, 5)], "High throughput, high memory"),
    ],
)
def test_a_strategy_is_named_by_how_it_stands_to_the_others(
    others: list[tuple[str, float, float]], name: str
) -> None:
    assert named(cell("a", 100, 10), *(cell(*other) for other in others))["a"] == name


def test_only_what_was_measured_alike_is_compared_and_on_most_devices() -> None:
    alike = [cell("a", 100, 10, world_size=8), cell("b", 90, 5, world_size=8)]
    fewer = [cell("a", 50, 10, world_size=4), cell("b", 90, 20, world_size=4)]
    assert {one.cell.cell_id for one in patterns([*fewer, *alike])} == {one.cell_id for one in alike}
    assert patterns([alike[0], fewer[1]]) == ()


@pytest.mark.parametrize(("speed", "memory"), [(None, 5.0), (90.0, None), (float("nan"), 5.0), (0.0, 5.0)])
def test_without_speed_or_memory_there_is_nothing_to_weigh(speed: float | None, memory: float | None) -> None:
    assert patterns([cell("a", 100, 10), cell("b", speed, memory)]) == ()


def test_what_is_left_out_is_what_tells_least_and_the_rest_keeps_its_order() -> None:
    assert most_relevant([3, 1, 2, 1], 3, lambda item: item) == (1, 2, 1)
    failed = replace(EXAMPLE.cells[9], num_failed=1)
    plain = [replace(cell, flags=(), num_failed=0) for cell in EXAMPLE.cells[:5]]
    best = plain[3]
    found = findings(cells=(*plain, failed), pareto=frozenset({best.cell_id}))
    assert cells_shown(found, 3) == (plain[0], best, failed)


def test_runs_of_a_cell_that_failed_alike_are_one_failure() -> None:
    rows = (
        row("a", status="oom", error_reason="88 GB", error_log_tail=("first",)),
        row("a", status="oom", error_reason="88 GB", error_log_tail=("last",)),
        row("a", status="crash", error_reason="rank 3", error_phase="warmup"),
        row("a"),
    )
    found = failures([replace(EXAMPLE.cells[0], rows=rows)])
    told = [(one.status, one.reason, one.phase, one.num_runs, one.log_tail) for one in found]
    assert told == [("oom", "88 GB", None, 2, ("last",)), ("crash", "rank 3", "warmup", 1, ())]


def test_commands_name_the_store_the_commit_and_the_sweep_as_a_shell_needs_them() -> None:
    rows = (row("a", sweep="my sweep", commit="c0ffee"), row("b", sweep="old", imported=True))
    told = how_to_repeat(findings(store="s3://a b/c", name="all", rows=rows))
    assert [command.line for command in told] == [
        "longhaul pull 's3://a b/c/reports/all' copy",
        "longhaul report --store 's3://a b/c'",
        "git checkout c0ffee",
        "longhaul sweep 'copy/specs/my sweep.yaml' --store again",
        "longhaul compare 's3://a b/c' again",
    ]
