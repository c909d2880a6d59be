"""Flags that several commands share."""

import argparse
from pathlib import Path

_READ_WAIT_S = 30.0
_MOST_WAIT_S = 86400.0


def add_set(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help=f"override a value of the spec, such as {example}; may be repeated; "
        "A.B=@FILE takes the value from a file that is yours alone, as secrets need it",
    )


def add_wait(parser: argparse.ArgumentParser) -> None:
    """For commands that only read: how long a store may be silent. The value is ``args.wait``."""
    parser.add_argument(
        "--wait",
        type=_wait_s,
        default=_READ_WAIT_S,
        metavar="SECONDS",
        help=f"give up if the store has not answered for so long (default: {_READ_WAIT_S:g})",
    )


def seconds(text: str) -> float:
    """Parses a number of seconds, which may be 0."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 60")
    return found


def _wait_s(text: str) -> float:
    if not 1 <= (found := seconds(text)) <= _MOST_WAIT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 to {_MOST_WAIT_S:g} seconds, such as 60")
    return found


def add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="take the groups from this cluster.yaml")
    parser.add_argument(
        "--exclude-node",
        action="append",
        default=[],
        metavar="NODE",
        help="run nothing on it: its name, its id, or how a report calls it; may be repeated",
    )
