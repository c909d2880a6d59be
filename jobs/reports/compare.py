"""``longhaul compare A B`` answers whether B is slower than the baseline A. It is made for CI.

A side is a store, or a part of one: ``URL#sweep=..,group=..,commit=..``.
"""

import argparse
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from checkpointing.stores.contract import Store, StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE, complain, run_command
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError, nearest
from jobs.reports.compare_text import Side, as_json, as_markdown, as_text
from jobs.reports.gate import EXIT_CODES, whole
from reporting.analysis.comparing import compare_sets
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


def compare(args: argparse.Namespace) -> int:
    # An unavailable store says nothing about B, so the answer is undecided. Trying again may help.
    codes = {SpecError: EXIT_USAGE, StoreError: EXIT_USAGE, Unavailable: EXIT_UNDECIDED}
    return run_command("compare", lambda: _compare(args), codes)


def _compare(args: argparse.Namespace) -> int:
    targets = read_target(args.baseline), read_target(args.other)
    with _without_garbage_collection():
        sides, skipped = _sides(targets)
        found = compare_sets(sides[0].rows, sides[1].rows, args.threshold)
    for file in skipped:
        complain("compare", f"{file.name}: {file.reason}, left out", EXIT_OK)
    write = as_json if args.json else as_markdown if args.markdown else as_text
    print(write(found, *sides, args.threshold), end="")
    return EXIT_CODES[whole(found, args.threshold)]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switches garbage collection off: all rows live to the end, and scans cost a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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


def _sides(targets: tuple[Target, Target]) -> tuple[tuple[Side, Side], tuple[Skipped, ...]]:
    """Reads both sides. A store on both sides is read once."""
    stores = {url: open_store(url, base=store_base()) for url in dict.fromkeys(each.url for each in targets)}
    gathered = {
        url: gather(store, sweeps=_sweeps([target for target in targets if target.url == url]))
        for url, store in stores.items()
    }
    baseline, other = (_side(target, stores[target.url], gathered[target.url]) for target in targets)
    return (baseline, other), tuple(file for found in gathered.values() for file in found.skipped)


def _sweeps(targets: Sequence[Target]) -> list[str]:
    """The sweeps to read. An empty list means all sweeps."""
    if not all("sweep" in target.wanted for target in targets):
        return []
    return sorted({sweep for target in targets for sweep in target.wanted["sweep"]})


def _side(target: Target, store: Store, gathered: Gathered) -> Side:
    rows = tuple(filter(target.takes, gathered.rows)) if target.wanted else gathered.rows
    if not rows:
        raise SpecError([f"{target.text}: there are no results{_hint(target, store, gathered.rows)}"])
    return Side(text=target.text, rows=rows)


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
