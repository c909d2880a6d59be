"""Rates that the doctor measured: kept in the store, found again by reports, and never another machine's."""

import json
from dataclasses import replace
from typing import Any

import pytest

from checkpointing.stores.memory import MemoryStore
from reporting.results.device_rates import (
    MachineRecord,
    MeasuredRate,
    measured_peaks,
    read_machines,
    with_measured_peaks,
    write_machine,
)
from reporting.results.gathering import gather
from reporting.results.rows import Row
from tests.unit.builders import measurement, record, run_of, sweep


def rate(tflops: float, *, device: int = 0, dtype: str = "bf16") -> MeasuredRate:
    return MeasuredRate(device=device, dtype=dtype, shape=(64, 32, 16), flops_per_s=tflops * 1e12)


MACHINE = MachineRecord(
    group="amd",
    node="node-1",
    device="AMD Instinct MI300X",
    measured_at="2026-01-02T03:04:05+00:00",
    torch="2.13.0+rocm7.0",
    rates=(rate(600), rate(650), rate(640, device=1), rate(80, dtype="fp32")),
)
ROW = Row(
    source="a",
    group="amd",
    precision="bf16",
    device_name="AMD Instinct MI300X",
    tokens_per_sec_per_device=1.0,
)


def test_what_was_written_is_read_again_and_replaced_by_the_next() -> None:
    store = MemoryStore()
    name = write_machine(store, MACHINE)
    assert name == "machines/amd/node-1-AMD-Instinct-MI300X.json"
    assert read_machines(store) == ((MACHINE,), ())

    newer = replace(MACHINE, measured_at="2026-02-02T03:04:05+00:00")
    write_machine(store, newer)
    assert read_machines(store) == ((newer,), ())


@pytest.mark.parametrize("node", ["", "..", "a/b", "ip 10.0.0.1", "höst", "x" * 300])
def test_a_nodes_name_never_leaves_the_folder(node: str) -> None:
    store = MemoryStore()
    name = write_machine(store, replace(MACHINE, node=node))
    assert name.startswith("machines/amd/")
    assert read_machines(store)[0][0].node == node


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 2}, "schema_version 2, expected 1"),
        ({"rates": None}, "not a machine's rates"),
        ({"rates": [{}]}, "not a machine's rates"),
        ({"rates": [{"device": 0, "dtype": "bf16", "shape": [1, 2, 3], "flops_per_s": 0}]}, "more than 0"),
        ({"rates": [{"device": 0, "dtype": "bf16", "shape": [1, 2], "flops_per_s": 1}]}, "not a machine's"),
        ({"group": 5}, "expected text"),
    ],
)
def test_a_damaged_file_is_named_and_left_out(change: dict[str, Any], reason: str) -> None:
    store = MemoryStore()
    name = write_machine(store, MACHINE)
    store.put("machines/amd/other.json", json.dumps({**json.loads(store.get(name)), **change}).encode())

    machines, skipped = read_machines(store)

    assert machines == (MACHINE,)
    assert [one.name for one in skipped] == ["machines/amd/other.json"]
    assert reason in skipped[0].reason


def test_a_groups_peak_is_the_median_device_at_its_best_shape() -> None:
    second = replace(MACHINE, node="node-2", rates=(rate(700),))
    peaks = measured_peaks([MACHINE, second])
    assert peaks == {
        ("amd", "AMD Instinct MI300X", "bf16"): 650e12,
        ("amd", "AMD Instinct MI300X", "fp32"): 80e12,
    }


@pytest.mark.parametrize(
    "row",
    [
        replace(ROW, group="nvidia"),
        replace(ROW, group=None),
        replace(ROW, precision="fp8"),
        replace(ROW, fp8="rowwise"),
        replace(ROW, device_name="AMD Instinct MI325X"),
        replace(ROW, device_name=None),
        replace(ROW, imported=True),
    ],
)
def test_another_group_device_or_precision_gets_no_peak(row: Row) -> None:
    assert with_measured_peaks([row], [MACHINE]) == (row,)


def test_gathered_rows_know_what_their_machine_can_do() -> None:
    store = MemoryStore()
    run = run_of(sweep())
    plain = record(sweep(), run, measurement(run.run_id)).to_dict()
    store.put("sweeps/trial/runs/a/result.json", json.dumps(plain).encode())
    (row,) = gather(store).rows
    assert row.measured_peak_flops is None
    assert row.group and row.precision

    on_it = MachineRecord(
        group=row.group,
        node="n",
        device=row.device_name,
        measured_at="",
        torch=None,
        rates=(rate(2, dtype=row.precision),),
    )
    write_machine(store, on_it)

    assert gather(store).rows == (replace(row, measured_peak_flops=2e12),)
