"""This module reads JSON results of other tools: an object, possibly with sections, or a list of objects.
Pure.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from reporting.importers.contents import ImportProblem, SourceContents, is_measured, left_out, listed
from reporting.importers.mapping import NameMapping
from reporting.importers.quantities import Unreadable, value_for
from reporting.results.records import SCHEMA_VERSION

_MOST_RUNS = 100_000
_MOST_RAW_TIMES = 100_000
_DEEPEST = 6
# Only a ``benchmark_{platform}_{timestamp}.json`` has sections of these names.
_SECTIONS = {"performance_metrics", "memory_metrics", "training_config", "gpu_info"}


def read_document(data: bytes, mapping: NameMapping) -> SourceContents:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImportProblem(f"not JSON, or cut off ({error})") from None
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(one, dict) for one in objects) or len(objects) > _MOST_RUNS:
        raise ImportProblem("JSON, but no result: expected an object with columns, or a list of such")
    _refuse_ours(objects[0])
    unknown: list[str] = []
    notes: list[str] = []
    runs = [_run(one, mapping, unknown, notes) for one in objects]
    if not any(map(is_measured, runs)):
        keys = (str(key) for one in objects for key in one)
        raise ImportProblem(
            "JSON, but no result: expected keys such as tokens_per_sec or mean_step_time_sec, "
            f"found {listed(keys) or 'none'}; add names with --mapping"
        )
    empty = [number for number, run in enumerate(runs, start=1) if not is_measured(run)]
    notes += left_out(empty, "result", "without a measurement")
    return SourceContents(
        kind="benchmark" if _SECTIONS & set(objects[0]) else "result",
        runs=tuple(run for run in runs if is_measured(run)),
        not_mapped=tuple(dict.fromkeys(unknown)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse_ours(found: Mapping[str, Any]) -> None:
    if found.get("schema_version") == SCHEMA_VERSION and "run_id" in found:
        raise ImportProblem(
            "a result of Longhaul itself, which needs no import: give its store to report or compare"
        )


def _run(
    found: Mapping[str, Any], mapping: NameMapping, unknown: list[str], notes: list[str]
) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for path, value in _leaves(found):
        target = mapping.target(*path)
        if not target or target.column == "step" or target.column in run:
            unknown.append(".".join(path))
            continue
        if isinstance(value, list) and len(value) > _MOST_RAW_TIMES:
            notes.append(
                f"{target.column} has {len(value):,} values: only the first {_MOST_RAW_TIMES:,} are read"
            )
        try:
            filled = _value(target.column, value, target.factor)
        except Unreadable as error:
            notes.append(str(error))
            continue
        if filled is not None:
            run[target.column] = mapping.value(target.column, filled)
    return run


def _value(column: str, value: Any, factor: float) -> Any:
    if column != "raw_step_times":
        if isinstance(value, list):
            raise Unreadable(f"{column} is a list, expected one value")
        return value_for(column, value, factor)
    if not isinstance(value, list):
        raise Unreadable(f"{column} is {value!r}, expected a list")
    times = (value_for("mean_step_time_sec", one, factor) for one in value[:_MOST_RAW_TIMES])
    return tuple(time for time in times if time is not None) or None


def _leaves(found: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in found.items():
        here = (*path, str(key))
        if isinstance(value, dict) and len(here) < _DEEPEST:
            yield from _leaves(value, here)
        else:
            yield here, value
