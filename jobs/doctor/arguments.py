"""Defines the flags of ``longhaul doctor``. Imports none of the checks."""

import argparse
from pathlib import Path


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look at every node of the cluster that RAY_ADDRESS names, or at this machine alone: versions, "
        "devices, speeds, clocks, links; at the store; and at the space that a run will take. Leaves the "
        "measured rates in the store, at machines/, where reports find them."
    )
    parser.epilog = (
        "exit codes: 0 all is well; 1 unusable; 2 wrong usage or spec; 3 usable, with warnings; "
        "130 interrupted"
    )
    parser.add_argument("--store", metavar="URL", help="the store to try (default: the spec's, else results)")
    parser.add_argument(
        "--spec", type=Path, metavar="FILE", help="a run's YAML file: will it fit, here and in the store?"
    )
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="the cluster.yaml whose promises are to be kept"
    )
    parser.add_argument(
        "--golden", type=Path, metavar="FILE", help="what healthy devices of yours computed, to compare with"
    )
    parser.add_argument(
        "--record-golden",
        type=Path,
        metavar="FILE",
        help="add to FILE what the devices compute now of known numbers",
    )
    parser.add_argument(
        "--security",
        action="store_true",
        help="look instead at this machine and the store as an attacker would; 3 if anything is open",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
