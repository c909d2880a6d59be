"""Defines the flags of ``longhaul slurm``. Pure: ``--help`` is instant."""

import argparse
from pathlib import Path

from jobs.commandline.options import add_set

SLURM_EXIT_CODES = (
    "exit codes: 0 written, and submitted if asked; 1 Slurm refused it; 2 wrong usage or spec; "
    "130 interrupted"
)


def add_slurm_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a job script for Slurm, for a sweep or a run. The job starts a Ray of its own on its nodes, "
        "saves before its wall time ends, and queues itself again until all is done."
    )
    parser.epilog = SLURM_EXIT_CODES
    parser.add_argument("spec", type=Path, metavar="SPEC", help="the YAML file of a sweep or a run")
    _add_size(parser)
    _add_place(parser)
    parser.add_argument("--submit", action="store_true", help="submit it with sbatch, too")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=_count, default=1, metavar="N", help="nodes of each group (default: 1)"
    )
    parser.add_argument("--gpus", type=_count, metavar="N", help="devices of each node")
    parser.add_argument("--cpus", type=_count, metavar="N", help="cores of each node")
    parser.add_argument(
        "--time",
        metavar="T",
        help="wall time of each start as Slurm writes it, such as 90, 12:00:00 or 2-00:00:00 "
        "(default: the partition's)",
    )
    parser.add_argument(
        "--stop-before",
        type=_count,
        metavar="S",
        help="ask the run to stop so many seconds before the wall time ends (default: 300, at most a quarter "
        "of --time)",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=OPTIONS",
        help="a group of nodes with options of sbatch, such as amd='--partition=mi300'; twice makes a "
        "heterogeneous job",
    )
    parser.add_argument(
        "--vendor",
        choices=("nvidia", "amd", "cpu"),
        help="whose devices all nodes have (default: each node looks)",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="more options of sbatch, such as --sbatch='--account=me --qos=long'; may be repeated",
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--container", metavar="IMAGE", help="run everything in this image, with Apptainer")
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the Python that has Longhaul on each node (default: this one, and python3 in a container)",
    )
    parser.add_argument("--store", metavar="URL", help="where results go (default: the spec's)")
    parser.add_argument("--run", metavar="NAME", help="the run's name (default: the spec's)")
    add_set(parser, "steps=40")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="where the script goes (default: longhaul-slurm/NAME)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
