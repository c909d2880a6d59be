"""What the page promises, read as a browser would: whole, alone, answer first, and safe from names."""

import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import pairwise

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.findings import Findings
from reporting.page import index_html
from reporting.page.sections import measured
from tests.unit.example_findings import (
    HOSTILE_NAME,
    empty_findings,
    example_findings,
    findings,
    hostile_findings,
)
from tests.unit.pages import Page, chart, many_cells, page_of, read
from tests.unit.result_rows import row

# Nobody changes them.
EXAMPLE = example_findings()
MANY = many_cells(2_000)
ALL = pytest.mark.parametrize(
    "found", [EXAMPLE, empty_findings(), hostile_findings()], ids=["example", "empty", "hostile"]
)
# What the report's folder holds besides.
BESIDE = {"metrics.csv", "metrics.parquet", "findings.json"}


@cache
def example_page() -> Page:
    return page_of(EXAMPLE, [chart("one"), chart("two")])


@ALL
def test_every_element_ends_where_it_must(found: Findings) -> None:
    assert page_of(found, [chart("one"), chart("two")]).problems == []


def test_the_reader_of_these_tests_sees_what_is_not_balanced() -> None:
    assert read("<p><b>x</p></b>").problems != []
    assert read("<p>x").problems == ["<p> never ends"]


@ALL
def test_every_id_is_there_once_and_every_reference_leads_to_one(found: Findings) -> None:
    page = page_of(found, [chart("one"), chart("two")])
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    links = [one.attributes["href"] for one in page.named("a") if one.attributes["href"].startswith("#")]
    labels = [
        one.attributes["aria-labelledby"] for one in page.elements if "aria-labelledby" in one.attributes
    ]
    assert {*(link[1:] for link in links), *labels} <= set(ids)


@ALL
def test_nothing_is_fetched_from_anywhere(found: Findings) -> None:
    html = index_html(found, [chart("one")])
    page = read(html)
    places = [
        one.attributes.get(name, "") for one in page.elements for name in ("src", "href", "action", "data")
    ]
    assert {place for place in places if place and place[0] != "#"} == BESIDE
    assert page.named("link", "iframe", "object", "embed", "base", "form") == []
    style = page.named("style")[0].text
    assert "url(" not in style and "@import" not in style


def test_the_policy_lets_only_the_pages_own_script_run() -> None:
    page = page_of(hostile_findings())
    (policy,) = (one.attributes["content"] for one in page.named("meta") if "http-equiv" in one.attributes)
    (script,) = page.named("script")
    digest = b64encode(sha256(script.text.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


@ALL
def test_headings_go_down_one_level_at_a_time(found: Findings) -> None:
    levels = [level for level, _ in page_of(found, [chart("one")]).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@ALL
def test_the_answer_comes_first(found: Findings) -> None:
    page = page_of(found, [chart("one")])
    assert page.named("section")[0].attributes["id"] == "answer"
    assert page.headings[1][1] == "Answer"
    for sentence in found.answer:
        assert " ".join(sentence.split()) in page.by_id("answer").shown


def test_the_sections_follow_in_the_order_of_reading() -> None:
    page = example_page()
    order = [section.attributes["id"] for section in page.named("section")]
    assert order[:6] == ["answer", "comparisons", "goals", "machines", "cells", "charts"]
    assert order[6:] == ["checks", "failures", "nodes", "runs", "goodput", "skipped", "method", "repeat"]
    contents = [link.attributes["href"] for link in page.named("a") if link.attributes["href"][0] == "#"]
    assert contents == ["#answer", *(f"#{name}" for name in order)]


def test_a_hostile_name_is_text_wherever_it_stands() -> None:
    html = index_html(hostile_findings(), [])
    page = read(html)
    assert "<script>alert" not in html
    assert len(page.named("script")) == 1
    assert [name for one in page.elements for name in one.attributes if name.startswith("on")] == []
    assert '<script>alert("1")</script>' in page.named("h1")[0].text


def test_what_no_utf8_can_hold_becomes_a_question_mark() -> None:
    html = index_html(findings(name="half \ud800 and \x00 nul", answer=("\x1b[31mred",)), [])
    assert "half ? and \ufffd nul" in html.encode().decode()
    assert "\x1b" not in html


def test_what_is_not_known_is_a_dash_and_never_a_word_of_python() -> None:
    page = page_of(hostile_findings())
    texts = [element.shown for element in page.named("td", "dd", "li", "p", "figcaption")]
    assert not [text for text in texts if re.search(r"\b(nan|inf|None)\b", text)]
    assert "–" in {element.shown for element in page.within("cells", "td")}


@pytest.mark.parametrize("flag", ["simulated", "imported"])
def test_numbers_that_nobody_measured_here_say_so_wherever_they_stand(flag: str) -> None:
    found = EXAMPLE
    cells = tuple(replace(cell, flags=(flag,) if cell.group == "amd" else ()) for cell in found.cells)
    page = page_of(replace(found, cells=cells))
    for table in ("cells", "goals", "failures"):
        chips = [one for one in page.within(table, "span") if one.attributes.get("class") == "chip origin"]
        assert {chip.shown for chip in chips} == {flag}
    rows = [row.shown for row in page.within("cell-table", "tr")[1:]]
    assert [flag in row for row in rows] == [row.startswith("amd") for row in rows]
    assert f"nvidia → amd {flag}" in page.by_id("comparison-table").shown
    assert "nvidia → amd both simulated" in example_page().by_id("comparison-table").shown


def test_joules_per_token_are_a_column_where_any_cell_has_them() -> None:
    first, *others = EXAMPLE.cells
    told = page_of(replace(EXAMPLE, cells=(replace(first, joules_per_token=0.737), *others)))
    heads = [head.shown for head in told.within("cell-table", "th")]
    assert any("J/token" in head for head in heads)
    assert "0.737" in told.by_id("cell-table").shown
    assert "J/token" not in example_page().by_id("cell-table").shown


def test_a_column_that_no_row_knows_anything_of_is_left_out_and_named() -> None:
    cells = summarise([row(cell_id="a"), row(cell_id="b", strategy="fsdp")])
    page = page_of(findings(cells=cells))
    heads = [head.shown for head in page.within("cell-table", "th")]
    assert not {"MFU", "H2D, GB/s", "Memory, GB", "CV"} & set(heads)
    assert {"Tokens/s [95 %]", "Step, s", "Scaling", "Flags"} <= set(heads)
    (caption,) = page.within("cell-table", "caption")
    assert "Known of no row: CV; Memory, GB; MFU; H2D, GB/s" in caption.shown
    known = page_of(findings(cells=(replace(cells[0], mfu=0.4), cells[1])))
    assert "MFU" in [head.shown for head in known.within("cell-table", "th")]


def test_a_comparison_has_ratio_interval_runs_p_winner_and_its_own_differences() -> None:
    page = example_page()
    row = page.within("comparison-table", "tr")[1].shown
    for said in ("llama-3.2-1b ddp x1", "faster", "amd by 1.081×", "[1.070, 1.092]", "5 + 5", "0.021", "1.0"):
        assert said in row
    assert "torch: 2.13.0+cu130 → 2.13.0+rocm7.2" in row


def test_machines_stand_side_by_side_and_what_differs_is_marked() -> None:
    page = example_page()
    rows = {row.shown for row in page.within("machine-table", "tr")}
    assert "driver differs 6.12.12 570.86" in rows
    assert "python 3.12.3 3.12.3" in rows


def test_the_head_of_a_long_run_alone_counts_nothing_that_is_not_there() -> None:
    facts = page_of(replace(empty_findings(), runs=EXAMPLE.runs[:1])).named("header")[0].shown
    assert "1 long run" in facts
    assert "0 " not in facts and "newest result" not in facts


def test_one_thing_differs_and_two_things_differ() -> None:
    rows = [row(group=group, torch=group, python=group) for group in ("amd", "nvidia")]
    assert "2 things differ between the groups" in page_of(findings(rows=tuple(rows))).by_id("machines").shown
    alike = tuple(replace(one, torch="2.13.0") for one in rows)
    shown = page_of(findings(rows=alike)).by_id("machines").shown
    assert "1 thing differs between the groups: python." in shown
    assert "results 1 run" in shown


def test_titles_stand_still_in_print_so_that_each_sheet_has_them() -> None:
    (style,) = example_page().named("style")
    printed = style.text.partition("@media print")[2]
    assert ".tall thead th, caption > span { position: static; }" in printed


def test_a_failure_is_said_with_its_reason_its_phase_and_its_log() -> None:
    page = example_page()
    crash = next(one for one in page.within("failures", "article") if "crash" in one.shown)
    for said in ("rank 3 died (exit 134)", "Phase steps", "Runs 5 of 5", "RuntimeError: RCCL error"):
        assert said in crash.shown


def test_cells_of_a_group_that_failed_in_the_same_way_are_one_card() -> None:
    rows = [
        row(None, group=group, cell_id=f"{group}-{strategy}", strategy=strategy, error_reason=reason)
        for group, reason in (("amd", "out of memory"), ("nvidia", "out of memory"), ("nvidia", "other"))
        for strategy in (("ddp", "fsdp", "zero1") if reason == "out of memory" else ("zero3",))
    ]
    cards = [card.shown for card in page_of(findings(cells=summarise(rows))).within("failures", "article")]
    assert len(cards) == 3
    assert cards[0].startswith("oom amd · 3 cells Reason out of memory")
    assert "Cells llama-tiny ddp x1 S64 b1 g1 fp32, llama-tiny fsdp" in cards[0]
    assert "Runs 3 of 3" in cards[0]
    assert cards[2].startswith("oom nvidia · llama-tiny zero3") and "Cells" not in cards[2]


def test_skipped_files_are_counted_and_named() -> None:
    shown = example_page().by_id("skipped").shown
    assert "2 files could not be read" in shown
    assert "sweeps/old/runs/a/result.json schema_version 0, expected 1" in shown


def test_a_long_runs_time_is_told_apart() -> None:
    shown = example_page().by_id("runs").shown
    for said in ("Goodput 95.3\u202f%", "recompute 18.5\u202fmin", "node nvidia-3 lost"):
        assert said.replace("\u202f", " ") in shown.replace("\u202f", " ")


@pytest.mark.parametrize("kernel", ["flash", None])
def test_the_attention_kernel_of_a_long_run_is_told_where_it_is_known(kernel: str | None) -> None:
    run = replace(EXAMPLE.runs[0], attention_kernel=kernel)
    shown = page_of(replace(EXAMPLE, runs=(run,))).by_id("runs").shown
    assert ("Attention kernel flash" in shown) == (kernel is not None)


def test_failures_of_a_long_run_are_not_lost_among_its_saves() -> None:
    saves = tuple((60.0 * number, "save", f"save {number}") for number in range(100))
    run = replace(EXAMPLE.runs[0], incidents=(*saves, (7000.0, "failure", "node lost")))
    rows = [row.shown for row in page_of(replace(EXAMPLE, runs=(run,))).within("incidents-0", "tr")[1:]]
    assert len(rows) == 30
    assert rows[-1].endswith("failure node lost")


def test_where_the_time_went_what_restarts_cost_and_what_alarmed_has_a_section() -> None:
    page = example_page()
    ledger = [row.shown.replace("\u202f", " ") for row in page.within("ledger-0", "tr")]
    assert any(row.startswith("recompute 18.5 min 1.3 %") for row in ledger)
    assert "The parts add up to 100 % of 24.0 h." in page.by_id("ledger-0").shown.replace("\u202f", " ")
    restarts = [row.shown.replace("\u202f", " ") for row in page.within("restarts-0", "tr")[1:]]
    assert restarts[0] == (
        "6.00 h failure 35.0 s 8.00 s 80.0 s 2.17 min 60.0 s 6.33 min 11.6 min 210 92.4 min "
        "node nvidia-3 lost"
    )
    assert "throughput drop" in page.by_id("alarms-0").shown


def test_a_run_that_never_restarted_and_raised_no_alarm_has_its_ledger_alone() -> None:
    run = replace(EXAMPLE.runs[0], recoveries=(), incidents=())
    shown = page_of(replace(EXAMPLE, runs=(run,))).by_id("goodput").shown
    assert "Goodput 95.3" in shown
    assert "device time" not in shown and "Alarms" not in shown


def test_nothing_measured_says_so_and_still_explains_itself() -> None:
    page = page_of(empty_findings())
    assert "There are no results" in page.by_id("answer").shown
    assert [one.attributes["id"] for one in page.named("section")] == ["answer", "method", "repeat"]


def test_two_thousand_cells_stay_below_five_megabytes_and_all_can_be_sorted() -> None:
    charts = [chart(f"c{number}", svg="x" * 900_000, png=b"x" * 100_000) for number in range(12)]
    html = index_html(MANY, charts)
    page = read(html)
    assert len(html.encode()) < 5_000_000
    assert len(page.within("cell-table", "tr")) == 2001
    assert "100 of 2,000 comparisons are shown" in page.by_id("comparisons").shown


def test_the_best_cells_are_shown_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_CELLS", 500)
    found = replace(MANY, cells=MANY.cells[:600])
    best = found.cells[-1]
    ordinary = tuple(replace(cell, num_failed=0, flags=()) for cell in found.cells[:-1])
    last = replace(best, subject=replace(best.subject, strategy="the-best"))
    page = page_of(replace(found, cells=(*ordinary, last), pareto=frozenset({best.cell_id}), advice=()))
    assert "the-best" in page.within("cell-table", "tr")[-1].shown
    assert "500 of 600 cells are shown" in page.by_id("cells").shown


def test_a_chart_is_drawn_with_its_title_and_its_caption_below() -> None:
    html = index_html(EXAMPLE, [chart("one", '<svg role="img" aria-label="One"><path d="M0 0"/></svg>')])
    figure = read(html).by_id("chart-one")
    assert figure.shown == "Title one A caption."
    assert '<svg role="img" aria-label="One"><path d="M0 0"/></svg>' in html


def test_a_drawing_too_large_for_the_page_becomes_pixels_and_then_a_place() -> None:
    large = f"<svg>{'x' * 4_800_000}</svg>"
    first = replace(chart("fits", large, png=b"small"), alt='Alt "fits" <&>')
    charts = [first, chart("not", large, png=b"y" * 3_600_000)]
    html = index_html(EXAMPLE, charts)
    page = read(html)
    (image,) = page.named("img")
    assert image.attributes == {"alt": 'Alt "fits" <&>', "src": "data:image/png;base64,c21hbGw="}
    assert "plots/not.png" in page.by_id("chart-not").shown


def test_the_same_findings_give_the_same_bytes() -> None:
    first, second = (index_html(found, [chart("one")]) for found in (EXAMPLE, example_findings()))
    assert first == second


def test_a_table_names_its_columns_and_rows_to_those_who_cannot_see_it() -> None:
    page = example_page()
    tables = page.named("table")
    assert len(page.named("caption")) == len(tables) > 5
    assert {head.attributes.get("scope") for head in page.named("th")} == {"col", "row"}


def test_a_hostile_name_does_not_make_a_hostile_command() -> None:
    lines = [one.text for one in page_of(hostile_findings()).within("repeat", "code")]
    assert lines[0].startswith('longhaul pull \'s3://bucket/<script>alert("1")</script>')
    assert HOSTILE_NAME.split("\n")[0] in lines[0]
