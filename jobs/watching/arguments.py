"""The flags of ``longhaul watch``."""

import argparse
from pathlib import Path

EXIT_CODES = (
    "exit codes: 0 shown, or --terminal has seen the end; 1 the store is away; 2 wrong usage, no such run or "
    "sweep; 130 ended by Ctrl-C"
)


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show how a run or a sweep goes, while it goes: as a page of this machine, or in this terminal. Only "
        "the store is read."
    )
    parser.epilog = EXIT_CODES
    parser.add_argument(
        "name", nargs="?", metavar="RUN|SWEEP", help="default: the one of the store that told something last"
    )
    parser.add_argument("--store", default="results", metavar="URL", help="default: results")
    parser.add_argument(
        "--listen",
        default=None,
        metavar="ADDRESS",
        help="where the page is, such as 127.0.0.1:8266 (the default, or the next free port); any other "
        "address than loopback needs a token in LONGHAUL_WATCH_TOKEN or in a file",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token that the page and /metrics ask for; it must be yours alone (0600)",
    )
    parser.add_argument("--terminal", action="store_true", help="show it in this terminal, no page")
    parser.add_argument("--json", action="store_true", help="print one snapshot as JSON and end")
