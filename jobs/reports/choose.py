"""``longhaul compare STORE --budget .. --deadline ..``: which measured cells train so many tokens in both.

It answers from measured cells alone, unless somebody asks to extrapolate.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED, complain
from jobs.commandline.output import one_line, printable
from jobs.commandline.store_waits import open_to_read
from jobs.commandline.text_table import TextColumn, as_text
from jobs.commandline.usage_error import SpecError, nearest
from jobs.reports.prices_file import read_prices
from jobs.reports.targets import Target, rows_of
from reporting.analysis.cells import summarise
from reporting.analysis.costs.choosing import (
    WRONG_NUMBERS,
    Bounds,
    Fit,
    Option,
    answer,
    options,
    with_doubts,
)
from reporting.analysis.costs.extrapolating import ONE_NODE, extrapolated
from reporting.analysis.costs.money import money
from reporting.analysis.findings import CellSummary, Estimate, Money
from reporting.analysis.formatting import number
from reporting.long_runs.summarising import long_runs

_SCHEMA_VERSION = 1
_MOST_LINES = 30
_CODES: dict[Fit, int] = {"yes": EXIT_OK, "not sure": EXIT_UNDECIDED, "no": EXIT_FAILED}


def is_choice(args: argparse.Namespace) -> bool:
    return args.budget is not None or args.deadline is not None


def choose(args: argparse.Namespace, target: Target) -> int:
    """Prints the cells, what fits first, and one sentence. 0: something fits; 3: that is not sure; 1: nothing
    does.
    """
    _check(args)
    prices = read_prices(args.prices) if args.prices else None
    store = open_to_read(target.url, args.wait)
    found, skipped = rows_of(target, store)
    for file in skipped:
        complain("compare", f"{file.name}: {file.reason}, left out", EXIT_OK)
    cells = [with_doubts(cell) for cell in _of_model(summarise(found), args.model)]
    if args.extrapolate:
        cells = [*cells, *extrapolated(cells)]
    costs = money(cells, (), long_runs(store)[0], prices=prices, tokens=args.tokens)
    assert costs is not None, "a number of tokens is there"
    bounds = Bounds(budget=args.budget, deadline_days=args.deadline)
    shown = options(cells, costs, bounds, doubtful=(ONE_NODE, WRONG_NUMBERS))
    if not shown:
        raise SpecError([f"{target.text}: no cell has numbers"])
    said = answer(shown, costs, bounds)
    print(_as_json(shown, costs, bounds, said) if args.json else printable(_as_text(shown, costs, said)))
    return _CODES[shown[0].fit]


def _check(args: argparse.Namespace) -> None:
    problems = []
    if args.other is not None:
        problems.append("B: --budget and --deadline look at the cells of A; leave B out")
    if args.tokens is None:
        problems.append("--tokens: say how long the training is, such as 15T or 300B")
    if args.budget is not None and not args.prices:
        problems.append("--budget: give --prices FILE, what a device of each group costs")
    if args.markdown:
        problems.append("--markdown: is for two sides; use --json")
    if problems:
        raise SpecError(problems)


def _of_model(cells: Sequence[CellSummary], model: str | None) -> list[CellSummary]:
    models = sorted({cell.subject.model for cell in cells})
    if model is None and len(models) > 1:
        raise SpecError([f"--model: there are {', '.join(models[:10])}; name one"])
    if model is not None and model not in models:
        raise SpecError(
            [f"--model: no cell is of {model!r} (there: {', '.join(models[:10])}){nearest(model, models)}"]
        )
    return [cell for cell in cells if model in (None, cell.subject.model)]


def _as_text(found: Sequence[Option], costs: Money, said: str) -> str:
    shown = found[:_MOST_LINES]
    currency = costs.prices.currency if costs.prices else ""
    columns = [
        TextColumn(title="fits", texts=tuple(option.fit for option in shown)),
        TextColumn(title="group", texts=tuple(option.cost.group for option in shown), may_fold=True),
        TextColumn(title="model", texts=tuple(option.cost.subject.model for option in shown), may_fold=True),
        TextColumn(
            title="strategy", texts=tuple(option.cost.subject.strategy for option in shown), may_fold=True
        ),
        _numbers("devices", [str(option.cost.subject.world_size) for option in shown]),
        _numbers("seq", [str(option.cost.subject.seq_len) for option in shown]),
        _numbers("micro-batch", [str(option.micro_batch or "-") for option in shown]),
        TextColumn(
            title="precision", texts=tuple(option.cost.subject.precision for option in shown), may_fold=True
        ),
        TextColumn(
            title="settings",
            texts=tuple(option.cost.subject.settings or "-" for option in shown),
            may_fold=True,
        ),
        _numbers("days", [_interval(option.days) for option in shown]),
        *([_numbers(currency, [_interval(option.price) for option in shown])] if currency else []),
        TextColumn(
            title="remarks", texts=tuple(", ".join(option.flags) or "-" for option in shown), may_fold=True
        ),
    ]
    lines = [as_text(columns).rstrip("\n")]
    if len(found) > len(shown):
        lines.append(f"{len(shown)} of {len(found)} cells are shown; --json has all")
    unknown = sorted({option.cost.group for option in found} - costs.goodputs.keys())
    if unknown:
        lines.append(f"for steps alone, since no measured long run is known of: {', '.join(unknown)}")
    return "\n".join([lines[0], *map(one_line, [*lines[1:], said])])


def _numbers(title: str, texts: Sequence[str]) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), is_number=True)


def _interval(found: Estimate | None) -> str:
    if found is None:
        return "-"
    between = f" [{number(found.low)}, {number(found.high)}]" if found.low and found.high else ""
    return f"{number(found.median)}{between}"


def _as_json(found: Sequence[Option], costs: Money, bounds: Bounds, said: str) -> str:
    told = {
        "schema_version": _SCHEMA_VERSION,
        "answer": said,
        "verdict": found[0].fit,
        "exit_code": _CODES[found[0].fit],
        "tokens": costs.tokens,
        "currency": costs.prices.currency if costs.prices else None,
        **asdict(bounds),
        "goodputs": dict(costs.goodputs),
        "options": [
            {
                "fit": option.fit,
                "micro_batch": option.micro_batch,
                "flags": list(option.flags),
                **asdict(option.cost),
            }
            for option in found
        ],
    }
    return json.dumps(told, indent=1)
