"""Defines the flags of ``report``, ``pull``, ``compare`` and ``import``. Imports none of these commands."""

import argparse
import re
from pathlib import Path

from jobs.commandline.options import add_wait

_LETTERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_STORE_HELP = "where the results are (default: results)"


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Gather everything in a store into one table, charts, a page, and an answer."
    parser.epilog = "exit codes: 0 done; 1 nothing to report, or the store failed; 2 wrong usage"
    parser.add_argument("--store", default="results", metavar="URL", help=_STORE_HELP)
    add_wait(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME",
        help="report this sweep alone, without the long runs; may be repeated",
    )
    parser.add_argument("--name", help="the report's name (default: the only sweep's or run's, else 'all')")
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="what a device of each group costs, for costs and break-even prices; a prices file, or a "
        "cluster file with prices",
    )
    parser.add_argument(
        "--tokens",
        type=_tokens,
        metavar="NUMBER",
        help="say what a training of so many tokens takes, such as 15T or 300B",
    )
    parser.add_argument(
        "--published",
        type=Path,
        metavar="FILE",
        help="a CSV table of published results to show beside measured cells (default: Longhaul's own)",
    )
    parser.add_argument("--pull", type=Path, metavar="DIR", help="also fetch the report into this folder")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="write the report into this folder and nothing into the store, which may be read-only",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fetch reports from a store: verified, gone on with where it broke off, only what changed."
    )
    parser.epilog = "exit codes: 0 the folder is what the store has; 1 it is not, run it again; 2 wrong usage"
    parser.add_argument("url", metavar="URL", help="a store, for all its reports, or STORE/reports/NAME")
    parser.add_argument("folder", type=Path, metavar="DIR")
    add_wait(parser)
    parser.add_argument("--json", action="store_true", help="print a line of JSON per report")


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read older results into the same table: result.json, metrics.csv, benchmark_*.json, xlsx, "
        "TensorBoard event files. Importing something again changes nothing."
    )
    parser.epilog = "exit codes: 0 all was read; 1 something could not be, or the store failed; 2 wrong usage"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder of them")
    parser.add_argument("--store", default="results", metavar="URL", help="where they go (default: results)")
    parser.add_argument("--group", metavar="NAME", help="the group they count for (default: imported-VENDOR)")
    parser.add_argument(
        "--vendor", choices=("nvidia", "amd", "cpu"), help="whose devices (default: what the files say)"
    )
    parser.add_argument(
        "--mapping", type=Path, metavar="FILE", help="more headers, keys and tags, as TOML or JSON"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Is B slower than the baseline A, cell by cell? Or, with --budget or --deadline: which cells of A "
        "train so many tokens within both? Each is a store, or a part of one: "
        "URL#sweep=NAME,group=NAME,commit=BEGINNING."
    )
    parser.epilog = (
        "exit codes: 0 B is not worse; 1 a cell is slower beyond the threshold, or fails in B alone; 2 wrong "
        "usage, or nothing found; 3 undecided: too few repeats, too noisy, or missing in B; 130 interrupted. "
        "With --budget or --deadline: 0 a cell fits; 1 none does; 3 none is sure to"
    )
    parser.add_argument("baseline", metavar="A", help="what B is held against, or whose cells are looked at")
    parser.add_argument("other", metavar="B", nargs="?", help="what is judged; may be of the same store")
    parser.add_argument(
        "--threshold",
        type=_share,
        default="2%",
        metavar="SHARE",
        help="what differs by less is equivalent, such as 2%% or 0.02 (default: 2%%)",
    )
    add_wait(parser)
    _add_choice_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON on standard output")
    form.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")


def _add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_argument_group("choosing hardware and settings")
    choice.add_argument(
        "--budget",
        type=_amount,
        metavar="AMOUNT",
        help="most that it may cost, in the currency of the prices",
    )
    choice.add_argument("--deadline", type=_amount, metavar="DAYS", help="most days that it may take")
    choice.add_argument(
        "--tokens", type=_tokens, metavar="NUMBER", help="how long the training is, such as 15T or 300B"
    )
    choice.add_argument("--prices", type=Path, metavar="FILE", help="what a device of each group costs")
    choice.add_argument("--model", metavar="NAME", help="the model, if there are several")
    choice.add_argument(
        "--extrapolate",
        action="store_true",
        help="also guess two and four times the largest measured number of devices, with intervals",
    )


def _amount(text: str) -> float:
    """Parses an amount of money or days, such as ``100000``, ``250K`` or ``1.5M``."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KM]?)", text.strip().upper())
    amount = float(match[1]) * _LETTERS[match[2]] if match else 0.0
    if amount <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount, expected one such as 30, 250K or 1.5M")
    return amount


def _share(text: str) -> float:
    """Parses a share such as ``2%`` or ``0.02``. A bare 2 is refused, since it would mean 200 %."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share, expected one such as 2% or 0.02")
    return share


def _tokens(text: str) -> float:
    """Parses ``15T``, ``300B``, ``2.5M`` or ``1e12``."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?(?:[eE]\+?\d{1,2})?)([KMBT]?)", text.strip().upper())
    tokens = float(match[1]) * _LETTERS[match[2]] if match else 0.0
    if not 1 <= tokens <= 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens, expected one such as 15T or 300B")
    return tokens
