"""Defines the flags of ``longhaul sweep``."""

import argparse
from pathlib import Path

from jobs.commandline.options import add_nodes, add_set

EXIT_CODES = """exit codes: 0 all cells are ok; 1 a cell is not; 2 wrong usage or spec; 130 interrupted"""


DEFAULT_SWEEP = Path(__file__).resolve().parents[1] / "specs" / "sweeps" / "smoke.yaml"


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure every cell of a sweep and leave one result per run. Running it again does only what is "
        "missing."
    )
    parser.epilog = EXIT_CODES
    parser.add_argument(
        "spec",
        nargs="?",
        type=Path,
        default=DEFAULT_SWEEP,
        metavar="SPEC",
        help="a sweep's YAML file (default: the smoke sweep)",
    )
    parser.add_argument("--store", metavar="URL", help="where the results go (default: the spec's)")
    add_set(parser, "measure.steps=20")
    add_nodes(parser)
    parser.add_argument(
        "--executor",
        choices=("ray", "inline"),
        help="inline: this process and no Ray; the default under torchrun, whose ranks then share the work",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show cells, placement and forecast; start nothing"
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="measure only what it takes to find each question's best setting, by successive halving",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="once all is measured, measure as many repeats once more, as another session",
    )
    parser.add_argument("--retry-failed", action="store_true", help="measure again what is there but not ok")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="let Ray's own log through")
