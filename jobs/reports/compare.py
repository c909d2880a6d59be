"""``longhaul compare A B`` answers whether B is slower than the baseline A. It is made for CI."""

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from checkpointing.stores.contract import StoreError, Unavailable
from jobs.commandline.exit_codes import EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE, complain, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.commandline.usage_error import SpecError
from jobs.reports.choose import choose, is_choice
from jobs.reports.compare_text import Side, as_json, as_markdown, as_text
from jobs.reports.gate import EXIT_CODES, whole
from jobs.reports.targets import Target, read_target, rows_among, sweeps_of
from reporting.analysis.comparing import compare_sets
from reporting.results.gathering import gather
from reporting.results.skipped import Skipped


def compare(args: argparse.Namespace) -> int:
    # An unavailable store says nothing about B, so the answer is undecided. Trying again may help.
    codes = {SpecError: EXIT_USAGE, StoreError: EXIT_USAGE, Unavailable: EXIT_UNDECIDED}
    with waits_told("compare"):
        return run_command("compare", lambda: _compare(args), codes)


def _compare(args: argparse.Namespace) -> int:
    if is_choice(args):
        return choose(args, read_target(args.baseline))
    targets = read_target(args.baseline), read_target(_other(args))
    with _without_garbage_collection():
        sides, unread = _sides(targets, args.wait)
        found = compare_sets(sides[0].rows, sides[1].rows, args.threshold)
    for file in unread:
        complain("compare", f"{file.name}: {file.reason}, left out", EXIT_OK)
    write = as_json if args.json else as_markdown if args.markdown else as_text
    print(printable(write(found, *sides, args.threshold, unread)), end="")
    return EXIT_CODES[whole(found, args.threshold, unread)]


def _other(args: argparse.Namespace) -> str:
    """The side that is judged. Raises ``SpecError`` without one, and for flags that ask for a choice."""
    if args.other is None:
        raise SpecError(["B: give what is judged; or --budget or --deadline, to choose among the cells of A"])
    given = [flag for flag in ("tokens", "prices", "model", "extrapolate") if getattr(args, flag)]
    if given:
        raise SpecError(
            [f"--{given[0]}: goes with --budget or --deadline, which look at the cells of A alone"]
        )
    return str(args.other)


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


def _sides(targets: tuple[Target, Target], wait_s: float) -> tuple[tuple[Side, Side], tuple[Skipped, ...]]:
    """Reads both sides, and which results can't be read. A store on both sides is read once."""
    stores = {url: open_to_read(url, wait_s) for url in dict.fromkeys(each.url for each in targets)}
    gathered = {
        url: gather(store, sweeps=sweeps_of([target for target in targets if target.url == url]))
        for url, store in stores.items()
    }
    baseline, other = (
        Side(text=target.text, rows=rows_among(target, stores[target.url], gathered[target.url]))
        for target in targets
    )
    return (baseline, other), tuple(file for found in gathered.values() for file in found.unread_results)
