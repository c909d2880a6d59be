"""Defines the flags of ``longhaul runs``. Pure: ``--help`` is instant."""

import argparse

from jobs.commandline.options import add_wait

_DEFAULT_LAST = 50


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the runs and sweeps that a store holds, the newest first."
    parser.epilog = "exit codes: 0 listed, also if there is none; 1 the store failed; 2 wrong usage or store"
    parser.add_argument("--store", default="results", metavar="URL", help="default: results")
    add_wait(parser)
    parser.add_argument(
        "--last",
        type=_count,
        default=_DEFAULT_LAST,
        metavar="N",
        help=f"show the newest N of each kind (default: {_DEFAULT_LAST}); JSON has all",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) == int(text[:10]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of lines, such as 50")
    return int(text)
