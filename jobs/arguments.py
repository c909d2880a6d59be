"""The command line, and nothing behind it: imports no more than argparse, so ``--help`` is instant."""

import argparse
from pathlib import Path

EXIT_CODES = """exit codes: 0 all cells are ok; 1 a cell is not; 2 wrong usage or spec; 130 interrupted"""
DEFAULT_SWEEP = Path(__file__).resolve().parent / "specs" / "sweeps" / "smoke.yaml"


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
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="override a value of the spec, such as measure.steps=20; may be repeated",
    )
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="take the groups from this cluster.yaml")
    parser.add_argument(
        "--executor",
        choices=("ray", "inline"),
        help="inline: this process and no Ray; the default under torchrun, whose ranks then share the work",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show cells, placement and forecast; start nothing"
    )
    parser.add_argument("--retry-failed", action="store_true", help="measure again what is there but not ok")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="let Ray's own log through")


def sweep_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    add_sweep_arguments(parser)
    return parser


def longhaul_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="longhaul",
        description="Benchmark and train large models on Ray clusters that mix NVIDIA and AMD worker groups.",
        epilog="`longhaul COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_sweep_arguments(commands.add_parser("sweep", help="measure models x strategies x sizes x groups"))
    return parser
