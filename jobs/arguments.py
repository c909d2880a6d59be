"""The command line, and nothing behind it: imports little more than argparse, so ``--help`` is instant."""

import argparse
from pathlib import Path

from jobs.checkpoints.arguments import add_checkpoints_arguments
from jobs.cluster_arguments import add_cluster_arguments
from jobs.doctor.arguments import add_doctor_arguments
from jobs.packing.arguments import add_pack_arguments
from jobs.report_arguments import (
    add_compare_arguments,
    add_import_arguments,
    add_pull_arguments,
    add_report_arguments,
)

EXIT_CODES = """exit codes: 0 all cells are ok; 1 a cell is not; 2 wrong usage or spec; 130 interrupted"""
RUN_EXIT_CODES = (
    "exit codes: 0 finished, or saved and stopped as asked; 1 failed, run it again; 2 wrong usage or spec; "
    "130 interrupted twice"
)
STOP_EXIT_CODES = (
    "exit codes: 0 stopped, or finished before; 1 nobody heard it, or not in time; 2 no such run or store; "
    "130 interrupted, the run is still asked"
)
DEFAULT_RUN = Path(__file__).resolve().parent / "specs" / "runs" / "smoke.yaml"
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
    _add_set(parser, "measure.steps=20")
    _add_nodes(parser)
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


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train one model to its end. Running it again goes on from the newest checkpoint."
    parser.epilog = RUN_EXIT_CODES
    parser.add_argument(
        "spec",
        nargs="?",
        type=Path,
        default=DEFAULT_RUN,
        metavar="SPEC",
        help="a run's YAML file (default: the smoke run)",
    )
    parser.add_argument("--store", metavar="URL", help="where checkpoints go (default: the spec's)")
    parser.add_argument("--run", metavar="NAME", help="the run's name (default: the spec's)")
    parser.add_argument(
        "--resume",
        default="latest",
        metavar="WHAT",
        help="latest (the default), backup, best, epoch:N, step:N, a generation, or STORE/runs/NAME of "
        "another run to begin from",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin at step 0, whatever there is; it stays for now"
    )
    _add_set(parser, "steps=40")
    _add_nodes(parser)
    parser.add_argument("--no-retry", action="store_true", help="end with the first attempt that fails")
    parser.add_argument(
        "--keep", action="store_true", help="start it again if its driver dies, until it is done or given up"
    )
    # How a keeper starts its drivers: their exit codes tell it more.
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--address",
        metavar="URL",
        help="with --keep: drive it as a job on this Ray cluster, such as http://head:8265 "
        "(default: RAY_ADDRESS, where that is one)",
    )
    parser.add_argument(
        "--take-over", action="store_true", help="train even if another driver is at work on the run: end it"
    )
    parser.add_argument(
        "--executor",
        choices=("ray", "inline"),
        help="inline: this process and no Ray; the default under torchrun, whose ranks then share the work",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="let Ray's own log through")


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "How a run is doing, as its store tells it."
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--store", default="results", metavar="URL", help="default: results")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ask a run to save and end at its next step, and wait until it has. The command that trained it goes "
        "on from there."
    )
    parser.epilog = STOP_EXIT_CODES
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--store", default="results", metavar="URL", help="default: results")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="wait so many seconds for it, 0: only ask (default: 600)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 60")
    return seconds


def train_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    add_train_arguments(parser)
    return parser


def _add_set(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help=f"override a value of the spec, such as {example}; may be repeated",
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="take the groups from this cluster.yaml")
    parser.add_argument(
        "--exclude-node",
        action="append",
        default=[],
        metavar="NODE",
        help="run nothing on it: its name, its id, or how a report calls it; may be repeated",
    )


def sweep_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    add_sweep_arguments(parser)
    return parser


def report_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    add_report_arguments(parser)
    return parser


def longhaul_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="longhaul",
        description="Benchmark and train large models on Ray clusters that mix NVIDIA and AMD worker groups.",
        epilog="`longhaul COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_sweep_arguments(commands.add_parser("sweep", help="measure models x strategies x sizes x groups"))
    add_train_arguments(commands.add_parser("train", help="train one model, from its newest checkpoint"))
    add_status_arguments(commands.add_parser("status", help="how a run is doing"))
    add_stop_arguments(commands.add_parser("stop", help="let a run save and end"))
    add_pack_arguments(commands.add_parser("pack", help="turn text into tokens that a run reads"))
    add_report_arguments(commands.add_parser("report", help="make one report of everything in a store"))
    add_pull_arguments(commands.add_parser("pull", help="fetch reports from a store"))
    add_compare_arguments(commands.add_parser("compare", help="whether results are slower than a baseline"))
    add_import_arguments(commands.add_parser("import", help="read older results into the same table"))
    add_checkpoints_arguments(commands.add_parser("checkpoints", help="see, check and take out checkpoints"))
    add_cluster_arguments(commands.add_parser("cluster", help="see the cluster, or try one on this machine"))
    add_doctor_arguments(commands.add_parser("doctor", help="what is wrong with nodes, links and the store"))
    return parser
