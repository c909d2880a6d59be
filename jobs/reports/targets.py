"""A target is a store whose results a command takes, or part of one: ``URL#sweep=..,group=..,commit=..``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from checkpointing.stores.contract import Store
from jobs.commandline.usage_error import SpecError, nearest
from reporting.analysis.formatting import counted
from reporting.results.gathering import Gathered, gather
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

_MOST_NAMES = 10

TargetKey = Literal["sweep", "group", "commit"]
_KEYS: tuple[TargetKey, ...] = ("sweep", "group", "commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One side of the comparison. A row must have one of the values of each key in ``wanted``.

    ``text`` is the argument as typed.
    """

    text: str
    url: str
    wanted: Mapping[TargetKey, tuple[str, ...]]

    def takes(self, row: Row) -> bool:
        return all(
            any(_is(getattr(row, key), key, value) for value in values) for key, values in self.wanted.items()
        )


def read_target(text: str) -> Target:
    """Parses a store with its filters. Raises ``SpecError``. A key given twice accepts either value."""
    url, _, narrowing = text.partition("#")
    wanted: dict[TargetKey, tuple[str, ...]] = {}
    for part in filter(None, narrowing.replace("&", ",").split(",")):
        name, equals, value = part.partition("=")
        key = next((key for key in _KEYS if key == name), None)
        if key is None:
            raise SpecError(
                [f"{text}: {name!r} narrows nothing ({', '.join(_KEYS)}){nearest(name, list(_KEYS))}"]
            )
        if not equals or not value:
            raise SpecError([f"{text}: {part!r} has no value, expected {key}=VALUE"])
        wanted[key] = (*wanted.get(key, ()), value)
    if not url:
        raise SpecError([f"{text!r} names no store, expected URL or URL#{_KEYS[0]}=VALUE"])
    return Target(text=text, url=url, wanted=wanted)


def _is(found: str | None, key: TargetKey, value: str) -> bool:
    """Compares a row's value with a filter's. A commit may be given by its beginning."""
    return found is not None and (found.startswith(value) if key == "commit" else found == value)


def rows_of(target: Target, store: Store) -> tuple[tuple[Row, ...], tuple[Skipped, ...]]:
    """Reads the target's rows, and what of its store can't be read. Raises ``SpecError`` if it has none."""
    gathered = gather(store, sweeps=sweeps_of([target]))
    return rows_among(target, store, gathered), gathered.skipped


def sweeps_of(targets: Sequence[Target]) -> list[str]:
    """The sweeps to read. An empty list means all sweeps."""
    if not all("sweep" in target.wanted for target in targets):
        return []
    return sorted({sweep for target in targets for sweep in target.wanted["sweep"]})


def rows_among(target: Target, store: Store, gathered: Gathered) -> tuple[Row, ...]:
    """The target's rows among those of its store, without the short runs of searches, which measure nothing.
    Raises ``SpecError`` if there are none.
    """
    rows = tuple(filter(target.takes, gathered.rows))
    whole = tuple(row for row in rows if row.rung is None)
    if rows and not whole:
        short = counted(len(rows), "short run")
        raise SpecError(
            [f"{target.text}: there are no results but {short} of a search, which are no measurements"]
        )
    if not whole:
        raise SpecError([f"{target.text}: there are no results{_hint(target, store, gathered.rows)}"])
    return whole


def _hint(target: Target, store: Store, rows: Iterable[Row]) -> str:
    """A hint for the first key whose values no row has: what the store holds instead.

    For sweeps the store's folders count too, since a sweep without results has no rows.
    """
    for key, values in target.wanted.items():
        known = {getattr(row, key) for row in rows} - {None}
        if key == "sweep":
            known |= {name.split("/")[1] for name in store.list("sweeps")}
        if not any(_is(name, key, value) for name in known for value in values):
            names = sorted(known)
            shown = ", ".join(names[:_MOST_NAMES]) or f"none has a {key}"
            return f" of {key} {' or '.join(values)} (there: {shown}){nearest(values[0], names)}"
    return (
        " that fit all of it" if target.wanted else "; `longhaul sweep` or `longhaul import` puts some there"
    )
