"""Finds the published result that is nearest to a measured cell, and says what differs. Pure.

Only results of the same device stand beside a cell, of a model of at most twice or half its parameters. The
distance adds up what differs: the model's size counts most, then precision, then settings, then sizes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2

from reporting.analysis.findings import BesidePublished, CellSummary, Published
from reporting.analysis.formatting import number
from reporting.results.rows import Row

# Models of other sizes have other tokens/s, so that a ratio would say nothing.
_SAME_SIZE = 0.1
_MOST_DOUBLINGS = 1.0
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """Published results, and by each name that drivers write the device that ``Published`` means by its own.

    A name that is missing is that of an unknown device, or of a part of one.
    """

    results: Sequence[Published]
    devices: Mapping[str, str]


def beside_published(cells: Sequence[CellSummary], yardstick: Yardstick) -> tuple[BesidePublished, ...]:
    """Returns the fastest cell per device of each group, model and dtype of products, each beside the nearest
    result. Simulated and imported cells have none.
    """
    fastest: dict[tuple[str, str, str | None], CellSummary] = {}
    for cell in cells:
        if cell.tokens_per_sec_per_device is None or {"simulated", "imported"}.intersection(cell.flags):
            continue
        key = (cell.group, cell.subject.model, _row(cell).product_dtype)
        if key not in fastest or _speed(cell) > _speed(fastest[key]):
            fastest[key] = cell
    found = (_beside(cell, yardstick) for _, cell in sorted(fastest.items(), key=lambda pair: str(pair[0])))
    return tuple(one for one in found if one)


def _beside(cell: CellSummary, yardstick: Yardstick) -> BesidePublished | None:
    row, device = _row(cell), _device(cell, yardstick)
    near = [result for result in yardstick.results if result.device == device and _is_near(row, result)]
    if not near:
        return None
    # Of equally near ones the first of the table, never the one that flatters.
    result = min(near, key=lambda one: _distance(row, one))
    is_same_size = abs((row.parameters or 0) / result.parameters - 1) <= _SAME_SIZE
    return BesidePublished(
        cell_id=cell.cell_id,
        sweep=cell.sweep,
        group=cell.group,
        subject=cell.subject,
        tokens_per_sec_per_device=_speed(cell),
        published=result,
        ratio=_speed(cell) / result.tokens_per_sec_per_device if is_same_size else None,
        differences=tuple(_differences(row, result)),
    )


def _device(cell: CellSummary, yardstick: Yardstick) -> str | None:
    """The one device of all runs that are ok."""
    names = {yardstick.devices.get(row.device_name or "") for row in cell.rows if row.status == "ok"}
    return names.pop() if len(names) == 1 else None


def _is_near(row: Row, result: Published) -> bool:
    if not row.parameters:
        return False
    return abs(_doublings(row.parameters, result.parameters)) <= _MOST_DOUBLINGS


def _distance(row: Row, result: Published) -> float:
    return (
        4 * abs(_doublings(row.parameters, result.parameters))
        + 2 * _differ(row.precision, result.precision)
        + 2 * _fp8_differs(row.fp8 or _NONE, result.fp8)
        + _differ(row.strategy, result.strategy)
        + _differ(row.activation_checkpointing or _NONE, result.checkpointing)
        + _differ(row.compile or _NONE, result.compile)
        + (1 if result.other else 0)
        + abs(_doublings(row.seq_len, result.seq_len)) / 2
        + abs(_doublings(row.world_size, result.devices)) / 4
        + abs(_doublings(row.per_device_batch, result.micro_batch)) / 4
    )


def _differ(ours: str | None, theirs: str | None) -> float:
    """What a source does not say is half a difference."""
    return 0.5 if theirs is None or ours is None else float(ours != theirs)


def _fp8_differs(ours: str, theirs: str | None) -> float:
    """Two recipes of fp8 are nearer to each other than to none."""
    both = theirs is not None and _NONE not in (ours, theirs)
    return 0.5 * _differ(ours, theirs) if both else _differ(ours, theirs)


def _doublings(ours: int | None, theirs: int | None) -> float:
    """How many times the one is twice the other. What nobody said counts as one doubling."""
    return log2(ours / theirs) if ours and theirs else 1.0


def _differences(row: Row, result: Published) -> Iterator[str]:
    """Yields what differs, each with both values; what the source does not say is said so."""
    plain: Callable[[object], str] = str
    for name, ours, theirs, write in (
        ("model", row.model, result.model, plain),
        ("parameters", row.parameters, result.parameters, _billions),
        ("strategy", row.strategy, result.strategy, plain),
        ("precision", row.precision, result.precision, plain),
        ("fp8", row.fp8 or _NONE, result.fp8, plain),
        ("devices", row.world_size, result.devices, plain),
        ("sequence length", row.seq_len, result.seq_len, plain),
        ("micro-batch", row.per_device_batch, result.micro_batch, plain),
        ("checkpointing", row.activation_checkpointing or _NONE, result.checkpointing, plain),
        ("compile", row.compile or _NONE, result.compile, plain),
    ):
        if ours != theirs:
            said = "does not say" if theirs is None else write(theirs)
            yield f"{name}: {'unknown' if ours is None else write(ours)} here, {said} there"
    if result.device_note:
        yield f"device: {row.device_name} here, {result.device} {result.device_note} there"
    if result.software:
        yield f"software: torch {row.torch or 'unknown'} here, {result.software} there"
    yield from (f"there: {told}" for told in (result.other, result.remark) if told)


def _billions(parameters: object) -> str:
    return f"{number(float(str(parameters)) / 1e9)} billion"


def _row(cell: CellSummary) -> Row:
    """A run that is ok, as what was measured."""
    return next(row for row in cell.rows if row.status == "ok")


def _speed(cell: CellSummary) -> float:
    assert cell.tokens_per_sec_per_device, "only measured cells stand beside published results"
    return cell.tokens_per_sec_per_device.median
