"""Device rates say how fast devices multiply matrices, as ``longhaul doctor`` measured it.

The store has one small file per node and device, ``machines/<group>/<node>-<device>.json``; a new measurement
replaces it. A report compares each row's speed with the measured rate of a plain matrix product on its
group's own devices, and with the datasheet's.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, is_name
from reporting.results.records import RecordError
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

FOLDER = "machines"
_VERSION = 1
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """One measured rate, in FLOP/s, of the node's device number ``device``. ``shape`` is (rows, inner,
    columns): the product of a (rows, inner) and an (inner, columns) matrix.
    """

    device: int
    dtype: str
    shape: tuple[int, int, int]
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """The rates of one node. ``device`` is the market name that the driver reports; it is None on a CPU,
    where a device is one core.
    """

    group: str
    node: str
    device: str | None
    measured_at: str
    torch: str | None
    rates: tuple[MeasuredRate, ...]


# (group, device, dtype)
RateKind = tuple[str, str | None, str]


def write_machine(store: Store, machine: MachineRecord) -> str:
    """Stores the record and returns its name in the store. An earlier record of that name is replaced."""
    name = f"{FOLDER}/{_plain(machine.group)}/{_plain(machine.node)}-{_plain(machine.device or 'cpu')}.json"
    store.put(name, json.dumps({"schema_version": _VERSION, **asdict(machine)}, indent=1).encode())
    return name


def read_machines(store: Store) -> tuple[tuple[MachineRecord, ...], tuple[Skipped, ...]]:
    """Returns all records in the order of their names. Files that can't be read are returned as skipped."""
    machines, skipped = [], []
    for name in sorted(name for name in store.list(FOLDER) if name.endswith(".json")):
        with suppress(Missing):
            try:
                machines.append(_machine(get_bounded(store, name, most_bytes=_MOST_BYTES)))
            except (RecordError, TooLarge) as error:
                skipped.append(Skipped(name=name, reason=str(error)))
    return tuple(machines), tuple(skipped)


def with_measured_peaks(rows: Iterable[Row], machines: Sequence[MachineRecord]) -> tuple[Row, ...]:
    """Sets the measured rate on rows of ours whose group, device and dtype of products were measured. All
    other rows stay as they are.
    """
    peaks = measured_peaks(machines)
    return tuple(_with_peak(row, peaks) for row in rows)


def measured_peaks(machines: Sequence[MachineRecord]) -> Mapping[RateKind, float]:
    """Returns the median over devices of each device's rate at its best shape. It is a median because nobody
    knows beforehand which device a run gets.
    """
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
    if row.imported or row.group is None or row.product_dtype is None:
        return row
    peak = peaks.get((row.group, row.device_name, row.product_dtype))
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
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
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
    """Makes ``text`` usable as part of a name in a store: each run of other characters becomes a dash."""
    plain = re.sub(r"[^A-Za-z0-9_+=@]+", "-", text).strip("-")[:80]
    return plain if is_name(plain) else "unknown"
