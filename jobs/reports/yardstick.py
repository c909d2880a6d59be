"""Reads a table of published results, and says which devices the names in measured rows mean."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.accelerators import accelerator
from cluster.yaml_file import read_named
from jobs.commandline.usage_error import SpecError
from reporting.analysis.findings import Published
from reporting.analysis.published.nearest import Yardstick
from reporting.analysis.published.table import PublishedError, published_results, results_of
from reporting.results.rows import Row

_MOST_BYTES = 4_000_000


def read_published(path: Path | None) -> tuple[Published, ...]:
    """Returns the results in the file, or without one those that Longhaul brings. Raises ``SpecError``."""
    if path is None:
        return published_results()
    try:
        data = read_named(path, _MOST_BYTES)
        if len(data) > _MOST_BYTES:
            raise SpecError([f"{path}: has more than the {_MOST_BYTES:,} bytes that are read"])
        return results_of(data.decode())
    except OSError as error:
        wanted = "a CSV table of published results"
        raise SpecError([f"{path}: can't be read ({error.strerror}); give the path of {wanted}"]) from None
    except UnicodeDecodeError:
        raise SpecError([f"{path}: is not text; expected CSV in UTF-8"]) from None
    except PublishedError as error:
        raise SpecError([f"{path}: {problem}" for problem in error.problems]) from None


def yardstick_of(results: Sequence[Published], rows: Iterable[Row]) -> Yardstick:
    names = {row.device_name for row in rows if row.device_name}
    devices = {name: chip.name for name in names if (chip := accelerator(name))}
    return Yardstick(results=results, devices=devices)
