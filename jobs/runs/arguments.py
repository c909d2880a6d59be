"""The flags of ``longhaul train``, ``status`` and ``stop``."""

import argparse
from pathlib import Path

from jobs.commandline.options import add_nodes, add_set, add_wait, seconds

RUN_EXIT_CODES = (
    "exit codes: 0 finished, or saved and stopped as asked; 1 failed, run it again; 2 wrong usage or spec; "
    "3 with --dry-run: it may not fit into memory; 130 interrupted twice"
)


STOP_EXIT_CODES = (
    "exit codes: 0 stopped, or finished before; 1 nobody heard it, or not in time; 2 no such run or store; "
    "130 interrupted, the run is still asked"
)


DEFAULT_RUN = Path(__file__).resolve().parents[1] / "specs" / "runs" / "smoke.yaml"


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
    add_set(parser, "steps=40")
    add_nodes(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show placement, forecast and where it would go on; start and write nothing",
    )
    parser.add_argument("--no-retry", action="store_true", help="end with the first attempt that fails")
    parser.add_argument(
        "--keep", action="store_true", help="start it again if its driver dies, until it is done or given up"
    )
    # A supervisor passes this flag to its drivers: it selects exit codes that only a supervisor
    # understands.
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
    add_wait(parser)
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
        type=seconds,
        default=600.0,
        metavar="S",
        help="wait so many seconds for it, 0: only ask (default: 600)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
