"""Flags that several commands share."""

import argparse
from pathlib import Path


def add_set(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help=f"override a value of the spec, such as {example}; may be repeated",
    )


def add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="take the groups from this cluster.yaml")
    parser.add_argument(
        "--exclude-node",
        action="append",
        default=[],
        metavar="NODE",
        help="run nothing on it: its name, its id, or how a report calls it; may be repeated",
    )
