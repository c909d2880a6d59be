"""Says which devices the names in measured rows mean, for published results of the same ones."""

from collections.abc import Iterable, Sequence

from cluster.accelerators import accelerator
from reporting.analysis.findings import Published
from reporting.analysis.published.nearest import Yardstick
from reporting.results.rows import Row


def yardstick_of(results: Sequence[Published], rows: Iterable[Row]) -> Yardstick:
    names = {row.device_name for row in rows if row.device_name}
    devices = {name: chip.name for name in names if (chip := accelerator(name))}
    return Yardstick(results=results, devices=devices)
