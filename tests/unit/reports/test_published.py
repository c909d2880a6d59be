"""Published results: every row of the table, which stands beside which cell, and what is said to differ."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.accelerators import accelerator
from jobs.commandline.usage_error import SpecError
from jobs.reports.yardstick import read_published, yardstick_of
from reporting.analysis.cells import summarise
from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import BesidePublished, Findings, Published
from reporting.analysis.published.nearest import beside_published
from reporting.analysis.published.table import (
    COLUMNS,
    REQUIRED,
    PublishedError,
    published_results,
    results_of,
)
from reporting.markdown.report import report_md
from reporting.page import index_html
from reporting.results.formulas import model_flops_utilization
from reporting.results.rows import Row
from tests.unit.pages import read
from tests.unit.result_rows import row

RESULTS = published_results()
LLAMA = 8_030_261_248
NAMES = {
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "H200 SXM": "NVIDIA H200",
    "MI300X": "AMD Instinct MI300X",
    "MI325X": "AMD Instinct MI325X",
    "A100 80GB": "NVIDIA A100-SXM4-80GB",
    "B200": "NVIDIA B200",
}
RECIPES = {"none", "tensorwise", "rowwise", "rowwise_with_gw_hp", "current scaling", "mxfp8", "unnamed"}


def cell(tokens_per_sec: float = 48_000.0, **changes: object) -> Row:
    values: dict[str, object] = {
        "model": "llama-3.1-8b", "parameters": LLAMA, "device_name": NAMES["H100 SXM"], "strategy": "fsdp",
        "world_size": 8, "seq_len": 8192, "per_device_batch": 2, "precision": "bf16", "compile": "block",
        "activation_checkpointing": "selective", "torch": "2.13.0+cu130", "cell_id": "c",
    }  # fmt: skip
    return row(tokens_per_sec, **{**values, **changes})


def beside(*rows: Row, results: tuple[Published, ...] = RESULTS) -> list[BesidePublished]:
    return list(beside_published(summarise(rows), yardstick_of(results, rows)))


def concluded(*rows: Row) -> Findings:
    return conclude("trial", "results", rows, yardstick=yardstick_of(RESULTS, rows))


def test_every_row_of_the_table_has_a_source_with_a_commit_and_numbers_that_can_be_true() -> None:
    assert {result.device for result in RESULTS} == NAMES.keys()
    assert all((chip := accelerator(name)) and chip.name == device for device, name in NAMES.items())
    for result in RESULTS:
        assert re.fullmatch(r"https://github\.com/[\w./-]+/blob/[0-9a-f]{40}/[\w./-]+", result.url), result
        assert result.date is None or re.fullmatch(r"20\d\d-\d\d(-\d\d)?", result.date)
        assert (result.devices or 0) > 0
        assert 1e8 < result.parameters < 1e12 and 1e2 < result.tokens_per_sec_per_device < 1e5
        assert result.strategy in (None, "ddp", "fsdp", "zero2")
        assert result.checkpointing in (None, "none", "selective", "full")
        assert result.fp8 in RECIPES and result.precision == "bf16"
    assert len({replace(result, source="") for result in RESULTS}) == len(RESULTS)


@pytest.mark.parametrize(
    ("tokens_per_sec", "expected"), [(5_762.0, 33.74), (6_667.0, 39.04)], ids=["eager", "compiled"]
)
def test_torchtitans_results_are_those_whose_utilization_is_known(
    tokens_per_sec: float, expected: float
) -> None:
    (found,) = (one for one in RESULTS if one.tokens_per_sec_per_device == tokens_per_sec)
    flops = 57.914e9
    assert (found.model, found.seq_len) == ("llama-3.1-8b", 8192)
    assert 100 * model_flops_utilization(tokens_per_sec, flops, 989e12) == pytest.approx(expected, abs=0.01)


def test_the_published_utilization_of_mpt_7b_is_that_of_our_formula() -> None:
    found = [one for one in RESULTS if one.model == "mpt-7b"]
    (known,) = (one for one in found if one.tokens_per_sec_per_device == 10_475.0)
    assert (known.parameters, known.devices, known.mfu_pct) == (6_658_859_008, 128, 45.71)
    for one in found:
        assert one.seq_len and one.mfu_pct
        flops = 6 * one.parameters + 12 * 32 * 4096 * one.seq_len
        peak = 989.5e12 if one.device == "H100 SXM" else 312e12
        ours = 100 * model_flops_utilization(one.tokens_per_sec_per_device, flops, peak)
        assert ours == pytest.approx(one.mfu_pct, abs=0.03)


def test_the_nearest_result_of_the_same_device_stands_beside_a_cell() -> None:
    (found,) = beside(cell())
    assert (found.published.source, found.published.tokens_per_sec_per_device) == ("torchtitan", 6_667.0)
    assert found.tokens_per_sec_per_device == 6_000.0
    assert found.ratio == pytest.approx(6_000 / 6_667)
    assert found.differences == (
        "device: NVIDIA H100 80GB HBM3 here, H100 SXM 96 GB HBM2e, 500 W there",
        "software: torch 2.13.0+cu130 here, torch 1963fc8, torchao eab345c, torchtitan 9dec370 there",
        "there: sequence length of the recipe, which the table does not state",
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fp8": "tensorwise"}, 8_532.0),
        ({"device_name": NAMES["B200"], "fp8": "tensorwise", "strategy": "ddp"}, 30_624.0),
        ({"device_name": NAMES["MI325X"], "fp8": "tensorwise"}, 16_224.0),
        ({"device_name": NAMES["A100 80GB"], "seq_len": 2048, "parameters": 6_700_000_000}, 4_641.0),
        ({"fp8": "tensorwise", "parameters": 2_700_000_000, "activation_checkpointing": "none"}, 19_146.0),
        ({"compile": "none"}, 5_762.0),
        ({"world_size": 128}, 6_514.0),
        ({"per_device_batch": 1}, 6_150.0),
        ({"device_name": NAMES["MI300X"], "fp8": "rowwise", "per_device_batch": 1}, 5_891.0),
        ({"device_name": "AMD Instinct MI300X_OAM", "fp8": "rowwise", "per_device_batch": 1}, 5_891.0),
        ({"device_name": NAMES["H200 SXM"], "world_size": 32, "fp8": "tensorwise"}, 10_938.0),
        ({"model": "mistral-7b-v0.3", "parameters": 7_248_023_552, "seq_len": 4096,
          "activation_checkpointing": "full", "compile": "none", "per_device_batch": 16}, 8_611.0),
    ],
)  # fmt: skip
def test_what_is_alike_decides_which_result_is_the_nearest(
    changes: dict[str, object], expected: float
) -> None:
    (found,) = beside(cell(**changes))
    assert found.published.tokens_per_sec_per_device == expected


def test_models_of_other_sizes_have_no_ratio_and_far_ones_nothing() -> None:
    (found,) = beside(cell(model="qwen2.5-7b", parameters=7_615_616_512))
    assert found.ratio is not None
    (found,) = beside(cell(model="other", parameters=int(1.5 * LLAMA)))
    assert found.ratio is None
    assert "parameters: 12.0 billion here, 8.03 billion there" in found.differences
    assert beside(cell(model="tiny", parameters=1_000_000)) == []
    assert beside(cell(parameters=None)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"simulated": True},
        {"imported": True},
        {"device_name": None},
        {"device_name": "NVIDIA H100X"},
        {"device_name": "NVIDIA H100 PCIe"},
        {"device_name": "NVIDIA H100 NVL"},
        {"device_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
        {"device_name": "NVIDIA GH200 480GB"},
        {"device_name": "NVIDIA L40S"},
    ],
)
def test_nothing_stands_beside_what_is_no_measurement_of_that_device(changes: dict[str, object]) -> None:
    assert beside(cell(**changes)) == []


def test_only_the_fastest_cell_of_a_group_model_and_dtype_is_shown() -> None:
    slow, fast = cell(40_000.0, cell_id="slow", strategy="zero2"), cell(cell_id="fast")
    fp8 = cell(60_000.0, cell_id="fp8", fp8="tensorwise")
    assert [one.cell_id for one in beside(slow, fast, fp8)] == ["fast", "fp8"]


def test_page_and_markdown_link_the_source_and_say_what_differs() -> None:
    findings = concluded(cell())
    page, text = index_html(findings, ()), report_md(findings, ())
    (table,) = (one for one in read(page).elements if one.attributes.get("id") == "published-table")
    assert "torchtitan 2024-12" in table.shown and "0.900×" in table.shown
    assert f'href="{RESULTS[0].url}"' in page
    assert "## Beside published results" in text and f"[torchtitan]({RESULTS[0].url})" in text
    without = concluded(cell(simulated=True))
    assert "published-table" not in index_html(without, ())
    assert "published results" not in report_md(without, ())


def test_hostile_names_of_models_stay_text() -> None:
    findings = concluded(cell(model="<script>alert(1)</script>", torch="`|`"))
    assert "<script>alert" not in index_html(findings, ())


def test_a_cell_that_ran_on_two_kinds_of_devices_has_nothing_beside_it() -> None:
    assert beside(cell(), cell(device_name="NVIDIA H100 80GB HBM3")) != []
    assert beside(cell(), cell(device_name=NAMES["H200 SXM"])) == []


HEADERS = "source,url,model,parameters,device,tokens_per_sec_per_device"
LINE = "ours,https://bench.example/1,llama-3.1-8b,8e9,H100 SXM,6000".replace("8e9", "8000000000")


def test_a_table_of_ones_own_stands_in_the_place_of_longhauls(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"\ufeff{HEADERS},seq_len\r\n{LINE},8192\r\n", encoding="utf-8")
    results = read_published(path)
    assert [(one.source, one.parameters, one.seq_len, one.compile) for one in results] == [
        ("ours", 8_000_000_000, 8192, None)
    ]
    (found,) = beside(cell(), results=results)
    assert found.ratio == 1.0
    assert "compile: block here, does not say there" in found.differences
    assert read_published(None) == RESULTS


def test_a_table_of_headers_alone_has_no_results(tmp_path: Path) -> None:
    assert results_of(HEADERS) == ()


def test_the_table_of_longhaul_has_every_column_in_the_order_of_its_documentation() -> None:
    text = Path("reporting/analysis/published/results.csv").read_text()
    assert sorted(text.split("\n", 1)[0].split(",")) == sorted(COLUMNS)
    documented = Path("docs/report.md").read_text().partition("## Published results")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in documented for name in COLUMNS)
    assert all(f"| `{name}` | yes |" in documented for name in REQUIRED)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: has no column source; expected source, url, model"),
        (f"{HEADERS},tflop", "line 1: 'tflop' is not a column; expected some of source"),
        (f"{HEADERS},url", "line 1: the column url is there twice"),
        (f"{HEADERS}\nours", "line 2: has not as many fields as there are headers"),
        (f"{HEADERS}\n{LINE},1", "line 2: has not as many fields as there are headers"),
        (f"{HEADERS}\n{LINE.replace('6000', '-1')}", "found '-1', expected a number above 0"),
        (f"{HEADERS}\n{LINE.replace('6000', '0')}", "found '0', expected a number above 0"),
        (f"{HEADERS}\n{LINE.replace('6000', 'nan')}", "found 'nan', expected a number above 0"),
        (f"{HEADERS}\n{LINE.replace('6000', '9' * 400)}", "expected a number above 0"),
        (f"{HEADERS}\n{LINE.replace('8000000000', '8B')}", "parameters: found '8B', expected a whole number"),
        (f"{HEADERS}\n{LINE.replace('8000000000', '9' * 5000)}", "expected a whole number above 0"),
        (
            f"{HEADERS}\n{LINE.replace('https', 'javascript')}",
            "expected an address that begins with https://",
        ),
        (
            f"{HEADERS}\n{LINE.replace('/1', '/1)')}",
            "url: found 'https://bench.example/1)', expected an address",
        ),
        (f"{HEADERS}\n{LINE.replace('ours', '')}", "source: found '', expected a value"),
        (f"{HEADERS}\n{LINE.replace('ours', 'o' * 301)}", "expected at most 300 characters"),
        (f"{HEADERS},date\n{LINE},last year", "date: found 'last year', expected a date such as 2024-12"),
        (f"{HEADERS}\n" + f"{LINE}\n" * 10_001, "at most 10,000 results are read"),
        (f'{HEADERS}\n"{"x" * 200_000}', "is not CSV"),
    ],
    ids=range(18),
)
def test_a_table_that_is_not_understood_is_refused_in_lines(text: str, problem: str) -> None:
    with pytest.raises(PublishedError) as raised:
        results_of(text)
    assert any(problem in each for each in raised.value.problems)
    assert all("\n" not in each for each in raised.value.problems)
    assert len(raised.value.problems) <= 10


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "can't be read (No such file or directory); give the path of a CSV table"),
        (b"\xff\xfe", "is not text; expected CSV in UTF-8"),
        (b"x" * 4_000_001, "has more than the 4,000,000 bytes that are read"),
        (b"nothing", "own.csv: line 1: has no column source"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, data: bytes | None, problem: str) -> None:
    path = tmp_path / "own.csv"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(SpecError) as raised:
        read_published(path)
    assert problem in str(raised.value)
