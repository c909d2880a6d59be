"""How fast devices multiply, as ``longhaul doctor`` measured it: one small file per node in the store.

``machines/<group>/<node>-<device>.json``; measuring again replaces it. A report holds each row's speed
against the rate of a plain matrix product on its group's own devices, beside the datasheet's.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from checkpointing.stores.contract import Missing, Store, is_name
from reporting.results.records import RecordError
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

FOLDER = "machines"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """FLOP/s of the device with this number, of one product of (rows, inner) and (inner, columns)."""

    device: int
    dtype: str
    shape: tuple[int, int, int]
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """``device`` is the market name as the driver tells it, None on a CPU, where a device is one core."""

    group: str
    node: str
    device: str | None
    measured_at: str
    torch: str | None
    rates: tuple[MeasuredRate, ...]


# Group, device, precision.
RateKind = tuple[str, str | None, str]


def write_machine(store: Store, machine: MachineRecord) -> str:
    """Its name in the store."""
    name = f"{FOLDER}/{_plain(machine.group)}/{_plain(machine.node)}-{_plain(machine.device or 'cpu')}.json"
    data = {
        "schema_version": _VERSION,
        "group": machine.group,
        "node": machine.node,
        "device": machine.device,
        "measured_at": machine.measured_at,
        "torch": machine.torch,
        "rates": [
            {"device": rate.device, "dtype": rate.dtype, "shape": rate.shape, "flops_per_s": rate.flops_per_s}
            for rate in machine.rates
        ],
    }
    store.put(name, json.dumps(data, indent=1).encode())
    return name


def read_machines(store: Store) -> tuple[tuple[MachineRecord, ...], tuple[Skipped, ...]]:
    """In the order of their names; what can't be read is named and left out."""
    machines, skipped = [], []
    for name in sorted(name for name in store.list(FOLDER) if name.endswith(".json")):
        with suppress(Missing):
            try:
                machines.append(_machine(store.get(name)))
            except RecordError as error:
                skipped.append(Skipped(name=name, reason=str(error)))
    return tuple(machines), tuple(skipped)


def with_measured_peaks(rows: Iterable[Row], machines: Sequence[MachineRecord]) -> tuple[Row, ...]:
    """Rows of ours whose group, device and precision were measured, with that rate; others as they are."""
    peaks = measured_peaks(machines)
    return tuple(_with_peak(row, peaks) for row in rows)


def measured_peaks(machines: Sequence[MachineRecord]) -> Mapping[RateKind, float]:
    """The median over devices, of each one's best shape: which of them a run gets is not known before."""
    found: dict[RateKind, list[float]] = {}
    for machine in machines:
        for (_, dtype), best in sorted(_best_of_devices(machine).items()):
            found.setdefault((machine.group, machine.device, dtype), []).append(best)
    return {kind: median(rates) for kind, rates in found.items()}


def _best_of_devices(machine: MachineRecord) -> dict[tuple[int, str], float]:
    best: dict[tuple[int, str], float] = {}
    for rate in machine.rates:
        key = rate.device, rate.dtype
        best[key] = max(best.get(key, 0.0), rate.flops_per_s)
    return best


def _with_peak(row: Row, peaks: Mapping[RateKind, float]) -> Row:
    if row.imported or row.group is None or row.precision is None:
        return row
    peak = peaks.get((row.group, row.device_name, row.precision))
    return row if peak is None else replace(row, measured_peak_flops=peak)


def _machine(data: bytes) -> MachineRecord:
    try:
        found = json.loads(data)
        if found["schema_version"] != _VERSION:
            raise RecordError(f"schema_version {found['schema_version']!r}, expected {_VERSION}")
        return MachineRecord(
            group=_text(found["group"]),
            node=_text(found["node"]),
            device=None if found["device"] is None else _text(found["device"]),
            measured_at=_text(found["measured_at"]),
            torch=None if found["torch"] is None else _text(found["torch"]),
            rates=tuple(map(_rate, found["rates"])),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"not a machine's rates ({type(error).__name__}: {error})") from None


def _rate(found: Mapping[str, Any]) -> MeasuredRate:
    rows, inner, columns = found["shape"]
    rate = float(found["flops_per_s"])
    if not isfinite(rate) or rate <= 0:
        raise ValueError(f"flops_per_s is {rate}, expected more than 0")
    return MeasuredRate(
        device=int(found["device"]),
        dtype=_text(found["dtype"]),
        shape=(int(rows), int(inner), int(columns)),
        flops_per_s=rate,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"found {value!r}, expected text")
    return value


def _plain(text: str) -> str:
    """As a part of a name: what doesn't fit becomes a dash."""
    plain = re.sub(r"[^A-Za-z0-9_+=@]+", "-", text).strip("-")[:80]
    return plain if is_name(plain) else "unknown"
