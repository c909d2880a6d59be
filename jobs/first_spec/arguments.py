"""Defines the flags of ``longhaul init``. Pure: ``--help`` is instant."""

import argparse
from pathlib import Path

from jobs.commandline.options import add_nodes


def add_init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look at this machine, at the running cluster (RAY_ADDRESS) or at a cluster file, and write a spec "
        "that runs there and fits. A file that exists is never changed."
    )
    parser.epilog = (
        "exit codes: 0 written; 1 nothing fits, or no file can be written; 2 wrong usage, or it exists"
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="what to write (default: run.yaml or sweep.yaml)"
    )
    parser.add_argument(
        "--kind",
        choices=("run", "sweep"),
        default="run",
        help="run: one training (the default); sweep: a comparison of strategies and groups",
    )
    parser.add_argument("--model", metavar="NAME", help="a preset to plan for (default: one that fits)")
    parser.add_argument("--group", metavar="NAME", help="the group that trains it (default: the largest)")
    add_nodes(parser)
