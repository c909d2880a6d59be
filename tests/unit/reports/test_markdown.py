"""``report.md`` as a pull request shows it: the reviewed text, and names that stay names."""

import re
from dataclasses import replace

import pytest

from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import Findings
from reporting.analysis.formatting import plain
from reporting.charts.choice import view_of
from reporting.markdown.report import report_md
from tests.conftest import Golden
from tests.unit.example_findings import (
    empty_findings,
    example_findings,
    findings,
    hostile_findings,
    long_run,
)
from tests.unit.pages import chart, many_cells
from tests.unit.result_rows import rows

EXAMPLE = example_findings()
ALL = pytest.mark.parametrize(
    "found", [EXAMPLE, empty_findings(), hostile_findings()], ids=["example", "empty", "hostile"]
)


def columns(line: str) -> int:
    """As GitHub counts them: a bar after a backslash is text."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def tables(text: str) -> list[list[str]]:
    """The lines of each table."""
    return [block.split("\n") for block in text.split("\n\n") if block.startswith("| ")]


def test_the_report_of_the_example_is_what_was_reviewed(golden: Golden) -> None:
    charts = [chart("tokens_per_sec_vs_gpu"), chart("step_time_vs_gpu")]
    golden("report_example.md", report_md(EXAMPLE, charts))


def test_the_report_of_nothing_is_what_was_reviewed(golden: Golden) -> None:
    golden("report_empty.md", report_md(empty_findings(), []))


@ALL
def test_every_line_of_a_table_has_as_many_columns_as_its_head(found: Findings) -> None:
    for head, *lines in tables(report_md(found, [])):
        assert {columns(line) for line in lines} == {columns(head)}


def test_joules_per_token_are_a_column_where_any_cell_has_them() -> None:
    assert "J/token" not in report_md(EXAMPLE, [])
    first, *others = EXAMPLE.cells
    told = replace(EXAMPLE, cells=(replace(first, joules_per_token=0.737), *others))
    (found,) = (lines for lines in tables(report_md(told, [])) if "J/token" in lines[0])
    assert [line.split("|")[-2].strip() for line in found if "0.737" in line] == ["0.737"]


@ALL
def test_what_unfolds_also_folds_and_has_blank_lines_around_its_markdown(found: Findings) -> None:
    text = report_md(found, [chart("one"), chart("two")])
    assert text.count("<details>") == text.count("</details>") == len(re.findall("</summary>\n\n", text))
    assert len(re.findall("\n\n</details>\n", text)) == text.count("</details>")


def test_the_answer_is_the_first_thing_after_the_name() -> None:
    title, _, answer, *_ = report_md(EXAMPLE, []).split("\n\n")
    assert title == "# vendors-1b"
    assert answer == f"**{EXAMPLE.answer[0]}**"


def test_a_hostile_name_is_neither_html_nor_a_cell_nor_a_picture() -> None:
    text = report_md(hostile_findings(), [])
    assert "<script" not in text
    assert set(re.findall(r"<(/?\w+)", text)) == {"details", "/details", "summary", "/summary", "pre", "/pre"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a|b", r"a\|b"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("![x](y)", r"!\[x\](y)"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("@team #12", r"&#64;team \#12"),
        ("- x", r"\- x"),
        ("1. x", r"1\. x"),
        ("85.00 GB", "85.00 GB"),
        ("two\nlines\tand more", "two lines and more"),
        ("$x$ ~y~ \\z", r"\$x\$ \~y\~ \\z"),
        ("llama-3.2-1b b2 g4", "llama-3.2-1b b2 g4"),
        ("", "–"),
    ],
)
def test_text_that_markdown_would_change_is_shown_as_it_is(name: str, shown: str) -> None:
    assert plain(name) == shown


def test_the_first_picture_lies_beside_the_report_and_says_what_it_shows() -> None:
    text = report_md(EXAMPLE, [chart("one"), chart("two")])
    assert "![Alt one](plots/one.png)" in text
    assert "plots/two.png" not in text


@pytest.mark.parametrize("flag", ["simulated", "imported"])
def test_numbers_that_nobody_measured_here_say_so(flag: str) -> None:
    cells = tuple(replace(cell, flags=(flag,) if cell.group == "amd" else ()) for cell in EXAMPLE.cells)
    rows = tuple(
        replace(row, simulated=flag == "simulated", imported=flag == "imported")
        if row.group == "amd"
        else row
        for row in EXAMPLE.rows
    )
    text = report_md(replace(EXAMPLE, cells=cells, rows=rows), [])
    of_amd = [line for line in text.split("\n") if line.startswith("| amd")]
    assert of_amd and all(line.startswith(f"| amd ({flag}) |") for line in of_amd)
    assert f"nvidia → amd ({flag})" in text


def test_fp8_on_a_cpu_is_simulated_and_the_rest_of_its_group_is_not() -> None:
    common = {"group": "local", "vendor": "cpu", "precision": "bf16"}
    usual = rows(1000.0, 1001.0, cell_id="a", fp8="none", **common)
    in_fp8 = rows(900.0, 901.0, cell_id="b", fp8="rowwise", simulated=True, **common)
    runs = (
        replace(long_run(), name="own", group="local", data=()),
        replace(long_run(), name="theirs", simulated=True, data=()),
    )
    found = conclude("trial", "results", [*usual, *in_fp8], runs=runs)

    assert "On CPUs fp8 is simulated: the figures of 1 cell say nothing of fp8 on devices." in found.answer
    assert not any("Groups on simulated devices" in sentence for sentence in found.answer)
    assert view_of(found).titles["local"] == "local (partly simulated)"
    lines = report_md(found, []).split("\n")
    assert sum(line.startswith("| local (simulated) | llama-tiny ddp") for line in lines) == 1
    assert sum(line.startswith("| local | llama-tiny ddp") for line in lines) == 1
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| own", "| theirs"))] == [
        "| own",
        "| theirs (simulated)",
    ]


def test_a_log_cannot_end_its_own_box() -> None:
    row = replace(EXAMPLE.rows[0], status="crash", error_log_tail=("</pre>", "", "# no heading"))
    cell = replace(EXAMPLE.cells[0], num_failed=1, rows=(row,))
    text = report_md(replace(EXAMPLE, cells=(cell,)), [])
    assert "<pre>\n&lt;/pre&gt;\n\n# no heading\n</pre>" in text


def test_two_thousand_cells_fit_into_a_comment_on_github() -> None:
    text = report_md(many_cells(2_000), [chart("one")])
    assert len(text) < 65_536
    assert "60 of 2,000 cells are shown" in text
    assert "20 of 2,000 comparisons are shown" in text


def test_what_does_not_fit_is_left_to_the_page_and_the_rest_stays() -> None:
    found = many_cells(200)
    row = replace(EXAMPLE.rows[0], status="crash", error_log_tail=("&" * 160,) * 10)
    failing = [replace(cell, num_failed=1, rows=(row,)) for cell in found.cells]
    text = report_md(replace(found, cells=tuple(failing)), [])
    assert len(text) < 65_536
    assert "200 failures: too long for this text, see [index.html](index.html)." in text
    assert "How to repeat it</summary>" in text


def test_the_same_findings_give_the_same_text() -> None:
    assert report_md(EXAMPLE, [chart("one")]) == report_md(example_findings(), [chart("one")])


def test_what_no_utf8_can_hold_becomes_a_question_mark() -> None:
    assert report_md(findings(name="half \ud800"), []).encode().startswith(b"# half ?\n")
