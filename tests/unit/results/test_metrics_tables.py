"""The table as files that others read: the first columns are those of the older documents."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.results.columns import TABLES
from reporting.results.rows import NAMES, Row
from reporting.results.tables import metrics_csv, metrics_parquet

OLD = (
    "strategy,world_size,rank,seq_len,tier,steps,per_device_batch,grad_accum,tokens_per_sec,"
    "mean_step_time_sec,mean_loss,peak_vram_gb,h2d_gbps_per_gpu,scaling_efficiency_pct"
)
FULL = Row(
    source="sweeps/a/runs/b/result.json",
    strategy="ddp",
    world_size=2,
    tokens_per_sec=1234.5678901234567,
    model='a, b "c" <i>d</i>\nü',
    simulated=True,
    warnings=("one", "two"),
    packages=(("numpy", "2.4.6"),),
    metrics=(("mine", None),),
    raw_step_times=(0.1, 0.2),
)
EMPTY = Row(source="sweeps/a/runs/c/result.json")


def read_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_the_csv_begins_with_the_columns_of_the_older_documents() -> None:
    assert metrics_csv([FULL]).decode().split("\n")[0].startswith(OLD + ",")


def test_the_csv_reads_back_as_the_same_values() -> None:
    full, empty = read_csv(metrics_csv([FULL, EMPTY]))

    assert float(full["tokens_per_sec"]) == FULL.tokens_per_sec
    assert full["model"] == FULL.model
    assert (full["simulated"], empty["simulated"]) == ("true", "false")
    assert json.loads(full["packages"]) == {"numpy": "2.4.6"}
    assert json.loads(full["warnings"]) == ["one", "two"]
    assert (empty["tokens_per_sec"], empty["warnings"]) == ("", "")


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_no_float_is_rounded(value: float) -> None:
    (found,) = read_csv(metrics_csv([replace(FULL, tokens_per_sec=value)]))

    assert float(found["tokens_per_sec"]) == value


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_is_a_formula_to_a_spreadsheet(first: str) -> None:
    formula = f"{first}cmd|' /C calc'!A0"
    texts = {column.name: formula for column in TABLES["metrics"] if column.kind == "text"}
    told: dict[str, Any] = {
        **texts,
        "optimizer": ((formula, formula),),
        "warnings": (formula,),
        "mean_loss": -1.5,
    }
    (found,) = read_csv(metrics_csv([replace(EMPTY, **told)]))

    written = formula.replace("\r", "\n")
    assert {name: found[name] for name in texts} == dict.fromkeys(texts, f"'{written}")
    assert not [name for name, text in found.items() if text.startswith(first) and name != "mean_loss"]
    assert found["mean_loss"] == "-1.5"
    assert json.loads(found["optimizer"]) == {formula: formula}


def test_no_text_moves_the_terminal_that_shows_the_file() -> None:
    hostile = "\x1b]0;title\x07a\u202eb\x9b2J\tc\u2028d\ud800\xa0e"
    data = metrics_csv([replace(EMPTY, group=hostile, warnings=(hostile,))])
    (found,) = read_csv(data)
    assert all(char.isprintable() or char in "\n\t\xa0" for char in data.decode())
    assert found["group"] == "\ufffd]0;title\ufffda\ufffdb\ufffd2J\tc\ufffdd\ufffd\xa0e"


def test_the_same_rows_give_the_same_bytes() -> None:
    assert metrics_parquet([FULL, EMPTY]) == metrics_parquet([FULL, EMPTY])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.parquet"
    path.write_bytes(metrics_parquet([FULL, EMPTY]))
    return path


def test_pyarrow_reads_it(path: Path) -> None:
    table = pq.read_table(path)

    assert tuple(table.column_names) == NAMES
    assert table.column("tokens_per_sec").to_pylist() == [FULL.tokens_per_sec, None]
    assert table.column("raw_step_times").to_pylist() == [[0.1, 0.2], []]
    assert table.schema.metadata[b"longhaul.metrics"] == b"1"


def test_pandas_reads_it(path: Path) -> None:
    table = pandas.read_parquet(path)

    assert table["strategy"].tolist()[0] == "ddp"
    assert math.isnan(table["tokens_per_sec"].tolist()[1])


def test_polars_reads_it(path: Path) -> None:
    assert polars.read_parquet(path).filter(polars.col("simulated"))["model"].to_list() == [FULL.model]


def test_duckdb_reads_it(path: Path) -> None:
    query = f"select model, len(raw_step_times) from '{path}' where world_size = 2"

    assert duckdb.sql(query).fetchall() == [(FULL.model, 2)]


def test_without_rows_the_columns_are_there() -> None:
    assert pq.read_table(io.BytesIO(metrics_parquet([]))).column_names == list(NAMES)
    assert read_csv(metrics_csv([])) == []
