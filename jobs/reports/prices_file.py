"""Reads a file of prices: what a device of each group costs."""

from pathlib import Path

from cluster.yaml_file import YamlError, read_yaml
from jobs.commandline.usage_error import SpecError
from reporting.analysis.costs.prices import EXAMPLE, PricesError, prices_of
from reporting.analysis.findings import Prices


def read_prices(path: Path) -> Prices:
    """Reads a file of prices, or the ``prices`` of a cluster file. Raises ``SpecError``."""
    try:
        found = read_yaml(path, f"a YAML file of prices, such as {EXAMPLE}")
    except YamlError as error:
        raise SpecError([str(error)]) from None
    place = str(path)
    if isinstance(found, dict) and ("available_node_types" in found or found.keys() == {"prices"}):
        found, place = found.get("prices"), f"{path}: prices"
    try:
        return prices_of(found)
    except PricesError as error:
        raise SpecError([f"{place}: {problem}" for problem in error.problems]) from None
