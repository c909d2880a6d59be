"""Parts are created once, say what they are, and are named when they can't be read."""

import json
import math
import resource
from dataclasses import asdict, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing.stores.memory import MemoryStore
from reporting.long_runs.ledger import PHASES
from reporting.recording.attempts import DRIVER, DeviceSample, Incident
from reporting.recording.parts import (
    KEY_COLUMNS,
    PartError,
    PartName,
    StepsFile,
    decode_part,
    encode_part,
    part_attempt,
    part_name,
    parts_of,
    schema_of,
    table_of,
    without_superseded,
)
from reporting.results.columns import ADDED, PARTS, TABLES
from reporting.results.rows import Row
from tests.unit.recorded import attempt, incident_row, leave, sample_row, step_row


def name_of(first: int, last: int, *, table: str = "steps", rank: int = 0, term: int = 1) -> PartName:
    return PartName(run="r", table=table, term=term, rank=rank, first=first, last=last)


def test_a_part_reads_back_as_it_was_recorded() -> None:
    store, one = MemoryStore(), attempt(start_step=7)
    name = leave(store, one, "steps", [step_row(8, loss=1.5), step_row(9, loss=float("nan"))])
    found = decode_part(name, store.get(str(name)))
    assert part_attempt(name, store.get(str(name))) == one
    assert found.column("step").to_pylist() == [8, 9]
    assert found.column("loss").to_pylist() == [1.5, None]
    assert found.column("run").to_pylist() == ["r", "r"]


@pytest.mark.parametrize("table", list(PARTS))
def test_each_tables_schema_has_its_columns_in_order(table: str) -> None:
    assert schema_of(table).names == [column.name for column in PARTS[table]]


def test_the_same_rows_give_the_same_bytes() -> None:
    def data() -> bytes:
        return encode_part("steps", attempt(), table_of("steps", attempt(), 0, [step_row(1)]))

    assert data() == data()


@pytest.mark.parametrize("rank", [0, 12, 123456, DRIVER])
def test_a_name_reads_back_as_what_it_names(rank: int) -> None:
    name = name_of(3, 62, rank=rank)
    assert part_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "runs/r/parts/steps/notes.txt",
        "runs/r/parts/wishes/00001-00000-00000001-00000001.parquet",
        "runs/r/gen/x/manifest.json",
        "runs/r/parts/steps/00001-00000-00000001.parquet",
    ],
)
def test_what_lies_there_too_is_no_part(name: str) -> None:
    assert part_name(name) is None


def test_a_merged_part_takes_the_place_of_those_that_it_holds() -> None:
    small = [name_of(number, number) for number in range(1, 6)]
    others = [name_of(2, 2, rank=1), name_of(2, 2, term=2), name_of(2, 2, table="phases")]
    merged = name_of(2, 4)
    kept = without_superseded([*small, *others, merged])
    assert set(kept) == {small[0], merged, small[4], *others}


def test_parts_of_a_rank_come_in_the_order_in_which_they_were_recorded() -> None:
    store = MemoryStore()
    for number in (10, 2, 1):
        leave(store, attempt(), "steps", [step_row(number)], number=number)
    assert [name.first for name in parts_of(store)] == [1, 2, 10]


def test_a_look_recorded_before_devices_told_more_reads_as_one_that_told_no_more() -> None:
    row = sample_row(DeviceSample(device="gpu 0", power_watts=600.0, energy_joules=5.0), 1.0)
    table = table_of("samples", attempt(), 0, [row])
    older = table.drop_columns([column.name for column in ADDED["samples"]])
    data = encode_part("samples", attempt(), older)
    found = decode_part(name_of(1, 1, table="samples"), data)
    assert found.schema == schema_of("samples")
    assert found.column("power_watts").to_pylist() == [600.0]
    assert found.column("energy_joules").to_pylist() == [None]


def test_steps_recorded_before_there_were_sources_tell_no_losses_of_them() -> None:
    table = table_of("steps", attempt(), 0, [step_row(1)])
    older = table.drop_columns([column.name for column in ADDED["steps"]])
    found = decode_part(name_of(1, 1), encode_part("steps", attempt(), older))
    assert found.schema == schema_of("steps")
    assert found.column("source_losses").to_pylist() == [None]


def test_a_part_that_lacks_what_it_always_had_is_none() -> None:
    table = table_of("steps", attempt(), 0, [step_row(1)]).drop_columns(["loss"])
    with pytest.raises(PartError, match="not a part that can be read"):
        decode_part(name_of(1, 1), encode_part("steps", attempt(), table))


@pytest.mark.parametrize(
    ("table", "recorded", "time"),
    [("samples", DeviceSample, "taken_s"), ("incidents", Incident, "happened_s")],
)
def test_what_is_recorded_has_the_columns_of_its_table_in_order(table: str, recorded: Any, time: str) -> None:
    names = [column.name for column in PARTS[table] if column.name not in KEY_COLUMNS]
    first, *rest = [field.name for field in fields(recorded)]
    assert names == [first, time, *rest]


def a_part() -> bytes:
    return encode_part("steps", attempt(), table_of("steps", attempt(), 0, [step_row(1)]))


def with_metadata(**changes: str) -> bytes:
    with pq.ParquetFile(BytesIO(a_part())) as file:
        rows = file.read()
    about = {**rows.schema.metadata, **{key.encode(): value.encode() for key, value in changes.items()}}
    sink = BytesIO()
    pq.write_table(rows.replace_schema_metadata(about), sink)
    return sink.getvalue()


def with_column(name: str, values: Any) -> bytes:
    with pq.ParquetFile(BytesIO(a_part())) as file:
        rows = file.read()
    changed = rows.set_column(rows.column_names.index(name), name, values)
    sink = BytesIO()
    pq.write_table(changed.replace_schema_metadata(rows.schema.metadata), sink)
    return sink.getvalue()


def foreign() -> bytes:
    sink = BytesIO()
    pq.write_table(pa.table({"step": [1]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a part that can be read"),
        (b"not parquet at all, but long enough to look at", "not a part that can be read"),
        (a_part()[:-20], "not a part that can be read"),
        (a_part()[: len(a_part()) // 2], "not a part that can be read"),
        (foreign(), "version is None, expected 1"),
        (with_metadata(**{"longhaul.part": "2"}), "version is 2, expected 1"),
        (with_metadata(**{"longhaul.table": "phases"}), "its rows are not steps"),
        (with_metadata(**{"longhaul.attempt": "[]"}), "not a part that can be read"),
        (with_metadata(**{"longhaul.attempt": "{"}), "not a part that can be read"),
    ],
)
def test_what_is_no_part_says_why(data: bytes, says: str) -> None:
    with pytest.raises(PartError, match=says):
        decode_part(name_of(1, 1), data)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leased_s", None), ("leased_s", "noon"), ("leased_s", math.nan), ("leased_s", 1e300),
        ("group", 5), ("group", "a\ud800"), ("world_size", "2"), ("world_size", 2**70), ("world_size", True),
        ("tokens_per_step", math.inf), ("start_step", []), ("parent_term", 0.5), ("simulated", 1),
        ("micro_batch", "4"), ("loss_digest", 5), ("attention_kernel", ["math"]),
    ],
)  # fmt: skip
def test_a_part_whose_attempt_can_not_be_that_is_none(name: str, value: object) -> None:
    told = json.dumps({**asdict(attempt()), name: value})
    with pytest.raises(PartError, match=f"the {name} of its attempt is "):
        decode_part(name_of(1, 1), with_metadata(**{"longhaul.attempt": told}))


def test_a_part_of_an_older_version_says_less_of_its_attempt() -> None:
    told = asdict(attempt(simulated=True, micro_batch=4, loss_digest="a", attention_kernel="math"))
    for name in ("simulated", "micro_batch", "loss_digest", "attention_kernel"):
        del told[name]
    data = with_metadata(**{"longhaul.attempt": json.dumps(told)})
    assert part_attempt(name_of(1, 1), data) == attempt()


@pytest.mark.parametrize("number", [None, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("column", ["ended_s", "step_s", "data_wait_s"])
def test_a_part_without_a_time_that_it_needs_is_none(column: str, number: float | None) -> None:
    with pytest.raises(PartError, match=f"it has no {column} that can be read in 1 rows"):
        decode_part(name_of(1, 1), with_column(column, pa.array([number], pa.float64())))


def test_a_part_without_its_steps_or_with_bytes_that_are_no_text_is_none() -> None:
    with pytest.raises(PartError, match="it has no step that can be read"):
        decode_part(name_of(1, 1), with_column("step", pa.array([None], pa.int64())))
    with pytest.raises(PartError, match="not a part that can be read"):
        decode_part(name_of(1, 1), with_column("run", pa.array([b"\xff"]).view(pa.string())))


def test_a_loss_that_is_none_is_null_and_a_duration_is_never_negative() -> None:
    loss = decode_part(name_of(1, 1), with_column("loss", pa.array([math.inf])))
    assert loss.column("loss").to_pylist() == [None]
    step = decode_part(name_of(1, 1), with_column("step_s", pa.array([-5.0])))
    assert step.column("step_s").to_pylist() == [0.0]


def test_a_part_of_another_run_that_was_copied_here_is_not_believed() -> None:
    with pytest.raises(PartError, match="recorded by attempt 1 of r"):
        decode_part(name_of(1, 1, term=2), a_part())


def test_a_missing_column_is_an_error_and_an_unknown_one_is_left_out() -> None:
    with pq.ParquetFile(BytesIO(a_part())) as file:
        rows = file.read()
    more, less = BytesIO(), BytesIO()
    pq.write_table(rows.append_column("mood", pa.array(["good"])), more)
    pq.write_table(rows.drop_columns(["loss"]), less)
    assert decode_part(name_of(1, 1), more.getvalue()).schema.equals(schema_of("steps"))
    with pytest.raises(PartError, match="loss"):
        decode_part(name_of(1, 1), less.getvalue())


TYPES: dict[str, tuple[Any, ...]] = {
    "text": (str, str | None),
    "int": (int, int | None),
    "float": (float | None,),
    "bool": (bool, bool | None),
    "texts": (tuple[str, ...],),
    "floats": (tuple[float, ...],),
    "pairs": tuple(tuple[tuple[str, kind], ...] for kind in (str, float, float | None)),
}


def test_the_glossary_explains_every_column_of_the_metrics_table_once_and_in_order() -> None:
    assert [column.name for column in TABLES["metrics"]] == [field.name for field in fields(Row)]
    wrong = [
        column.name
        for column, field in zip(TABLES["metrics"], fields(Row), strict=True)
        if field.type not in TYPES[column.kind]
    ]
    assert wrong == []


def test_every_column_has_a_meaning() -> None:
    assert [column.name for table in TABLES.values() for column in table if not column.meaning] == []


def test_incidents_and_phases_are_parts_like_any_other() -> None:
    store = MemoryStore()
    incidents = leave(store, attempt(), "incidents", [incident_row("start", text="hello")])
    phases = leave(store, attempt(), "phases", [(next(iter(PHASES)), 1.0, 2.0, 1.0)])
    assert decode_part(incidents, store.get(str(incidents))).column("text").to_pylist() == ["hello"]
    assert decode_part(phases, store.get(str(phases))).num_rows == 1


def test_a_full_disk_is_said_as_what_it_is(tmp_path: Path) -> None:
    """Not by what the library says when it closes the file that failed."""
    schema = schema_of("steps")
    losses = pa.array([step / 3 for step in range(200_000)])
    columns = {field.name: losses if field.name == "loss" else pa.nulls(200_000) for field in schema}
    rows = pa.Table.from_pydict(columns, schema=schema)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"), StepsFile(tmp_path / "steps.parquet") as file:
            for _ in range(4):
                file.add(rows, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
