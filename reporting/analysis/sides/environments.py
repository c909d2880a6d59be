"""Environments show what each group's runs ran on, side by side, and where the groups differ. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from reporting.analysis.formatting import gigabytes, joined, number, short, unit
from reporting.results.rows import Row

FactKind = Literal["hardware", "software", "fingerprint", "package", "variable"]

NO_GROUP = "no group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One property of the machines, with one value per group in the groups' order. ``–`` means that no run of
    the group knows it.

    ``differs`` only compares groups that know the value: an unknown value can't be told apart.
    """

    kind: FactKind
    name: str
    values: tuple[str, ...]
    differs: bool


def groups_of(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(sorted({group_of(row) for row in rows}))


def group_of(row: Row) -> str:
    return row.group or NO_GROUP


def facts(rows: Sequence[Row]) -> tuple[Fact, ...]:
    """Returns hardware, software, then packages and variables by name. Values that no run knows are
    left out.
    """
    groups = groups_of(rows)
    seen: dict[tuple[FactKind, str], dict[str, dict[str, None]]] = {}
    for row in rows:
        for kind, name, value in _facts_of(row):
            if value:
                seen.setdefault((kind, name), {}).setdefault(group_of(row), {})[value] = None
    kinds = ("hardware", "software", "fingerprint", "package", "variable")
    ordered = sorted(
        seen,
        key=lambda key: (
            kinds.index(key[0]),
            key[1] if key[0] in ("fingerprint", "package", "variable") else "",
        ),
    )
    return tuple(_fact(kind, name, groups, seen[kind, name]) for kind, name in ordered)


def _fact(kind: FactKind, name: str, groups: Sequence[str], seen: dict[str, dict[str, None]]) -> Fact:
    known = [sorted(seen[group]) for group in groups if group in seen]
    return Fact(
        kind=kind,
        name=name,
        values=tuple(joined(sorted(seen.get(group, ()))) for group in groups),
        differs=any(values != known[0] for values in known),
    )


def _facts_of(row: Row) -> Iterator[tuple[FactKind, str, str | None]]:
    yield "hardware", "vendor", row.vendor
    yield "hardware", "device", row.device_name
    yield "hardware", "device memory", _gigabytes(row.device_memory_bytes)
    yield "hardware", "datasheet peak", _peak(row)
    yield "hardware", "measured peak", _teraflops(row.measured_peak_flops)
    yield "hardware", "driver", row.driver
    yield "hardware", "power cap", _watts(row.power_cap_watts)
    yield "software", "platform", row.platform
    yield "software", "torch", row.torch
    yield "software", "collectives", row.collectives
    yield "software", "python", row.python
    yield "software", "commit", row.commit and row.commit[:12]
    yield "software", "source digest", row.source_digest and row.source_digest[:12]
    yield "software", "timing", row.sync and f"sync: {row.sync}"
    yield "software", "attention kernel", row.attention_kernel
    for name, value in row.fingerprint:
        yield "fingerprint", short(name), value
    for name, value in row.packages:
        yield "package", short(name), value
    for name, value in row.variables:
        yield "variable", short(name), value


def _watts(watts: float | None) -> str | None:
    return None if watts is None else f"{watts:,.0f} W"


def _gigabytes(num_bytes: int | None) -> str | None:
    return None if num_bytes is None else gigabytes(num_bytes / 1e9)


def _peak(row: Row) -> str | None:
    peak = _teraflops(row.peak_flops)
    return peak and f"{peak} ({row.product_dtype})"


def _teraflops(flops: float | None) -> str | None:
    return None if flops is None else unit(number(flops / 1e12, 4), "TFLOP/s")
