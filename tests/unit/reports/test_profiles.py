"""Profiles in reports: where the time of profiled steps went, and names that stay names."""

import re
from dataclasses import replace
from typing import Any

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.findings import Findings
from reporting.analysis.profiles import profiles_of
from reporting.markdown.profiles import profiles as in_markdown
from reporting.markdown.report import report_md
from reporting.page.sections.profiles import profiles as on_page
from reporting.results.rows import Row
from tests.conftest import Golden
from tests.unit.example_findings import HOSTILE_NAME, example_findings, findings
from tests.unit.pages import page_of
from tests.unit.result_rows import row

KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"
# Control characters, and those that are invisible or turn the direction of what follows.
NOT_SHOWN = "[\x00-\x08\x0b-\x1f\x7f\u200b\u200e\u200f\u2028\u202a-\u202e\u2060-\u206f]"
TRACE = "trace-0123456789abcdef.json.gz"


def profiled(**changes: Any) -> Row:
    """Of a device, two ranks, three steps."""
    number = changes.pop("number", 1)
    values: dict[str, Any] = {
        "run_id": f"run-{number}",
        "source": f"sweeps/trial/runs/cell-r{number}/result.json",
        "world_size": 2,
        "simulated": True,
        "profile_basis": "device",
        "profile_steps": 3,
        "profile_step_sec": 0.08,
        "profile_communication_share": 0.31,
        "profile_exposed_communication_share": 0.12,
        "profile_exposed_communication_share_min": 0.02,
        "profile_exposed_communication_share_max": 0.22,
        "profile_data_wait_share": 0.004,
        "profile_device_idle_share": 0.05,
        "profile_operation_names": ("gemm_bf16", KERNEL, "ncclDevKernel_AllReduce"),
        "profile_operation_shares": (0.52, 0.2, 0.31),
        "profile_operation_calls": (224.0, 96.0, 2.5),
        "profile_operation_sec": (0.0416, 0.016, 0.0248),
        "profile_trace": TRACE,
        "profile_trace_bytes": 123_456,
    }
    return row(**{**values, **changes})


def on_cpu(**changes: Any) -> Row:
    return profiled(
        world_size=1,
        strategy="fsdp",
        cell_id="cpu",
        group="local",
        simulated=False,
        profile_basis="cpu",
        profile_device_idle_share=None,
        profile_trace=None,
        profile_trace_problem="it is larger than 16 MiB",
        **changes,
    )


def failed(**changes: Any) -> Row:
    reason = "rank 1: RuntimeError: no events"
    return row(run_id="x", cell_id="failed", strategy="zero3", profile_problem=reason, **changes)


def report_of(*rows: Row) -> Findings:
    return findings(rows=rows, cells=summarise(rows))


EXAMPLE = report_of(
    profiled(number=1),
    profiled(number=2, profile_exposed_communication_share=0.14),
    profiled(number=3, profile_exposed_communication_share=0.19),
    on_cpu(number=4),
    failed(),
    row(run_id="plain", cell_id="plain", strategy="zero1"),
)


def test_the_part_of_report_md_is_what_was_reviewed(golden: Golden) -> None:
    golden("report_profiles.md", "\n\n".join(in_markdown(profiles_of(EXAMPLE.cells))) + "\n")


def test_the_section_of_the_page_is_what_was_reviewed(golden: Golden) -> None:
    golden("report_profiles.html", on_page(EXAMPLE).text)


def test_a_cells_numbers_are_medians_over_its_runs_and_its_operations_the_first_ones() -> None:
    (found,) = profiles_of(report_of(*EXAMPLE.rows[:3]).cells)
    assert found.exposed == 0.14
    assert found.slowdown == pytest.approx(0.08 / 0.064)
    assert [one.name for one in found.operations] == ["gemm_bf16", KERNEL, "ncclDevKernel_AllReduce"]
    assert found.trace == f"sweeps/trial/runs/cell-r1/{TRACE}"


def test_where_nothing_was_profiled_nothing_is_shown() -> None:
    plain = report_of(row(), row(None))
    assert on_page(plain).text == ""
    assert list(in_markdown(profiles_of(plain.cells))) == []
    assert "rofile" not in report_md(plain, [])
    assert [one for one in page_of(plain).named("section") if one.attributes["id"] == "profiles"] == []


def test_a_profile_that_failed_says_why() -> None:
    page = page_of(EXAMPLE).by_id("profiles")
    assert "no profile: rank 1: RuntimeError: no events" in page.shown
    assert "no trace: it is larger than 16 MiB" in page.shown
    assert "rank 1: RuntimeError: no events" in report_md(EXAMPLE, [])


@pytest.mark.parametrize(
    "hostile",
    [
        {"profile_operation_names": (HOSTILE_NAME, "\x1b[31m", "x" * 100_000)},
        {"profile_operation_names": ("gemm\u202e61fb", "a\u2066b\u200f", "c\u2028d")},
        {
            "profile_operation_names": ("a",) * 1_000,
            **{f"profile_operation_{what}": (0.1,) * 1_000 for what in ("shares", "calls", "sec")},
        },
        {"profile_operation_shares": (float("nan"), float("inf"), -1)},
        {"profile_operation_calls": ()},
        {"profile_basis": HOSTILE_NAME, "profile_trace_problem": HOSTILE_NAME},
        {"profile_problem": HOSTILE_NAME, "profile_step_sec": float("nan")},
        {"profile_step_sec": 0.0, "mean_step_time_sec": 0.0},
    ],
    ids=lambda hostile: next(iter(hostile)),
)
def test_what_somebody_else_wrote_is_short_and_stays_text(hostile: dict[str, Any]) -> None:
    found = report_of(profiled(**hostile))
    page, text = page_of(found), report_md(found, [])
    assert page.problems == []
    assert len(page.named("script")) == 1
    assert len(page.by_id("profiles").text) < 5_000
    assert "x" * 101 not in page.by_id("profiles").text
    assert "<script" not in text
    assert len(text) < 10_000
    assert not re.search(NOT_SHOWN, text + page.by_id("profiles").text)


@pytest.mark.parametrize(
    "trace", ["../../secret", "trace-0123456789abcdef.json.gz/../x", "<b>", "", "a" * 99]
)
def test_a_trace_by_another_name_is_not_shown(trace: str) -> None:
    (found,) = profiles_of(report_of(profiled(profile_trace=trace)).cells)
    assert found.trace is None


def test_many_profiles_are_as_many_as_a_page_holds() -> None:
    many = report_of(*(profiled(number=number, cell_id=f"cell-{number}") for number in range(300)))
    page = page_of(many)
    assert "50 of 300 profiles are shown" in page.by_id("profiles").shown
    assert "30 of 300 profiles are shown" in report_md(many, [])


def test_profiles_change_nothing_else_of_a_report() -> None:
    example = example_findings()
    cells = tuple(
        replace(cell, rows=tuple(replace(row, profile_steps=3) for row in cell.rows))
        for cell in example.cells
    )
    with_profiles = page_of(replace(example, cells=cells))
    sections = [one.attributes["id"] for one in with_profiles.named("section")]
    sections.remove("profiles")
    assert sections == [one.attributes["id"] for one in page_of(example).named("section")]
    assert with_profiles.by_id("cells").text == page_of(example).by_id("cells").text
