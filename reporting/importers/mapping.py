"""The mapping says which header, key or tag means which column, and in which unit. Users can extend
it. Pure.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from reporting.importers.quantities import units_of
from reporting.results.rows import NAMES

STEP = "step"
# Longhaul sets these columns itself; an imported file can't.
_RESERVED = {
    "source", "imported", "warnings", "run_id", "cell_id", "group", "sweep", "simulated", "timing_unit",
    "repeat", "order", "attempt", "status", "metrics", "packages", "variables", "fingerprint", "optimizer",
    "nodes", "error_log_tail",
}  # fmt: skip
_ROW_COLUMNS = tuple(name for name in NAMES if name not in _RESERVED)
_COLUMNS = (STEP, *_ROW_COLUMNS)
_SECTIONS = ("columns", "values", "vendors", "paths", "numbers")
_SYNONYMS = {
    "avg": "mean", "average": "mean", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "tok": "tokens",
    "toks": "tokens", "token": "tokens", "millisecond": "ms", "milliseconds": "ms", "microseconds": "us",
}  # fmt: skip
_QUALIFIERS = {
    "val", "valid", "validation", "eval", "evaluation", "test", "min", "minimum", "max", "maximum", "std",
    "stdev", "median", "p50", "p90", "p95", "p99", "first", "last", "best", "worst", "total", "previous",
}  # fmt: skip
_WORD = re.compile(r"[^\W_]+")


class MappingError(Exception):
    """A mistake in the user's mapping. The message says where in which file, what was found and what was
    expected.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedColumn:
    """The column that a name means, and the factor by which its numbers are multiplied."""

    column: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMapping:
    """A mapping from names to columns. The keys of ``targets``, ``values`` and ``vendors`` are normalised by
    ``plain``. ``decimal`` is the decimal sign of CSV files; None if each file's numbers say it.
    """

    targets: Mapping[str, MappedColumn] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    vendors: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[re.Pattern[str], ...] = ()
    decimal: str | None = None

    def target(self, *labels: str) -> MappedColumn | None:
        """Returns the column for labels given from the outermost to the innermost, as of merged headers or
        nested keys.
        """
        parts = [part for part in map(plain, labels) if part]
        for tried in _label_combinations(parts):
            if found := self._target_of(tried):
                return found
        return None

    def value(self, column: str, value: Any) -> Any:
        """Returns Longhaul's own word for a column's value."""
        return self.values.get(column, {}).get(plain(value), value) if isinstance(value, str) else value

    def vendor(self, text: str | None) -> str | None:
        words = plain(text or "").split()
        return next((self.vendors[word] for word in words if word in self.vendors), None)

    def values_in_path(self, path: str) -> dict[str, str]:
        """Returns what the names of a file and its folders say. If two patterns match, the first
        one counts.
        """
        found: dict[str, str] = {}
        for pattern in self.patterns:
            if match := pattern.search(path.lower()):
                found = {name: text for name, text in match.groupdict().items() if text} | found
        return found

    def extended(self, other: "NameMapping") -> "NameMapping":
        """Returns this mapping extended by ``other``. If both know a name, ``other`` counts."""
        columns = {*self.values, *other.values}
        return NameMapping(
            targets={**self.targets, **other.targets},
            values={name: {**self.values.get(name, {}), **other.values.get(name, {})} for name in columns},
            vendors={**self.vendors, **other.vendors},
            patterns=(*other.patterns, *self.patterns),
            decimal=other.decimal or self.decimal,
        )

    def _target_of(self, parts: Sequence[str]) -> MappedColumn | None:
        if found := self.targets.get(" ".join(parts)):
            return found
        for index, part in enumerate(parts):
            name, _, unit = part.rpartition(" ")
            rest = [*parts[:index], name.removesuffix(" in"), *parts[index + 1 :]]
            found = self.targets.get(" ".join(filter(None, rest)))
            if found and unit in units_of(found.column):
                return MappedColumn(column=found.column, factor=units_of(found.column)[unit])
        return None


def plain(text: str) -> str:
    """Normalises a name to lower-case words: ``Avg. Step-Time (sec)`` becomes ``mean step time s``."""
    words = _WORD.findall(text.lower().replace("%", " percent ").replace("/", " per "))
    return " ".join(_SYNONYMS.get(word, word) for word in words)


@cache
def shipped() -> NameMapping:
    """Returns the mapping that comes with Longhaul."""
    path = resources.files("reporting.importers") / "mapping.toml"
    return read_mapping(path.read_bytes(), "mapping.toml")


def read_mapping(data: bytes, name: str) -> NameMapping:
    """Reads a mapping from TOML, or from JSON if ``name`` ends in ``.json``. Raises ``MappingError``."""
    try:
        found = json.loads(data) if name.endswith(".json") else tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MappingError(f"{name}: neither TOML nor JSON ({error})") from None
    if not isinstance(found, dict):
        raise MappingError(f"{name}: expected a table with {', '.join(_SECTIONS)}")
    for section in found:
        _check_known(name, "section", section, _SECTIONS)
    return NameMapping(
        targets=dict(_targets(name, _table(name, found, "columns"))),
        values=dict(_values(name, _table(name, found, "values"))),
        vendors=_texts(name, found, "vendors"),
        patterns=tuple(_patterns(name, _table(name, found, "paths").get("patterns", []))),
        decimal=_decimal(name, _table(name, found, "numbers")),
    )


def _decimal(file: str, numbers: Mapping[str, Any]) -> str | None:
    for key in numbers:
        _check_known(f"{file}: numbers", "key", key, ("decimal",))
    decimal = numbers.get("decimal")
    if decimal not in (None, ",", "."):
        raise MappingError(f'{file}: numbers.decimal: found {decimal!r}, expected "," or "."')
    return decimal


def _targets(file: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, MappedColumn]]:
    for column, entries in columns.items():
        _check_known(f"{file}: columns", "column", column, _COLUMNS)
        if not isinstance(entries, list):
            raise MappingError(f"{file}: columns.{column}: expected a list of names")
        for entry in entries:
            yield _entry(f"{file}: columns.{column}", column, entry)


def _entry(where: str, column: str, entry: Any) -> tuple[str, MappedColumn]:
    name, unit = (entry.get("name"), entry.get("unit")) if isinstance(entry, dict) else (entry, None)
    if not isinstance(name, str) or not plain(name):
        raise MappingError(f'{where}: {entry!r} is neither a name nor {{name = "...", unit = "ms"}}')
    if unit is None:
        return plain(name), MappedColumn(column=column)
    units = units_of(column) if column != STEP else {}
    if str(unit).lower() not in units:
        raise MappingError(f"{where}: {unit!r} is no unit of it ({', '.join(units) or 'it has none'})")
    return plain(name), MappedColumn(column=column, factor=units[str(unit).lower()])


def _values(file: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for column in columns:
        _check_known(f"{file}: values", "column", column, _COLUMNS)
        yield column, _texts(f"{file}: values", columns, column)


def _table(file: str, found: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    table = found.get(section, {})
    if not isinstance(table, dict):
        raise MappingError(f"{file}: {section}: expected a table")
    return table


def _texts(file: str, found: Mapping[str, Any], section: str) -> dict[str, str]:
    table = _table(file, found, section)
    for word, meaning in table.items():
        if not isinstance(meaning, str):
            raise MappingError(f"{file}: {section}.{word}: {meaning!r} is not a text")
    return {plain(word): meaning for word, meaning in table.items()}


def _patterns(file: str, patterns: Any) -> Iterator[re.Pattern[str]]:
    for text in patterns if isinstance(patterns, list) else [patterns]:
        try:
            pattern = re.compile(text)
        except (re.error, TypeError) as error:
            raise MappingError(f"{file}: paths.patterns: {text!r} is no pattern ({error})") from None
        for column in pattern.groupindex:
            _check_known(f"{file}: paths.patterns", "column", column, _ROW_COLUMNS)
        yield pattern


def _label_combinations(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields the label combinations to try: all labels, then fewer from the left; two labels also in reverse
    order.

    A label that says which of several numbers is meant is never dropped: ``val/loss`` is not a training loss.
    """
    different = list(dict.fromkeys(parts))
    for start in range(len(different)):
        if _QUALIFIERS & {word for part in different[:start] for word in part.split()}:
            return
        yield different[start:]
        if len(different) - start == 2:
            yield different[:-3:-1]


def _check_known(where: str, what: str, found: str, known: Sequence[str]) -> None:
    if found not in known:
        close = get_close_matches(found, known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise MappingError(f"{where}: {found!r} is not a {what}{hint}")
