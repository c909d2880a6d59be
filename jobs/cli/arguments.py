"""Builds the command line. Imports little more than argparse, so that ``--help`` is instant."""

import argparse

from jobs.checkpoints.arguments import add_checkpoints_arguments
from jobs.cli.version import ShowVersion
from jobs.clusters.arguments import add_cluster_arguments
from jobs.dataset.arguments import add_data_arguments
from jobs.doctor.arguments import add_doctor_arguments
from jobs.explaining.arguments import add_explain_arguments
from jobs.first_spec.arguments import add_init_arguments
from jobs.listing.arguments import add_runs_arguments
from jobs.packing.arguments import add_pack_arguments
from jobs.reports.arguments import (
    add_compare_arguments,
    add_import_arguments,
    add_pull_arguments,
    add_report_arguments,
)
from jobs.runs.arguments import add_status_arguments, add_stop_arguments, add_train_arguments
from jobs.slurm.arguments import add_slurm_arguments
from jobs.sweeps.arguments import add_sweep_arguments
from jobs.watching.arguments import add_watch_arguments


def train_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    add_train_arguments(parser)
    return parser


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
    parser.add_argument("--version", action=ShowVersion, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_init_arguments(commands.add_parser("init", help="write a first spec that runs here and fits"))
    add_sweep_arguments(commands.add_parser("sweep", help="measure models x strategies x sizes x groups"))
    add_train_arguments(commands.add_parser("train", help="train one model, from its newest checkpoint"))
    add_runs_arguments(commands.add_parser("runs", help="list the runs and sweeps of a store"))
    add_status_arguments(commands.add_parser("status", help="how a run is doing"))
    add_watch_arguments(commands.add_parser("watch", help="a live page of a run or a sweep"))
    add_stop_arguments(commands.add_parser("stop", help="let a run save and end"))
    add_pack_arguments(commands.add_parser("pack", help="turn text into tokens that a run reads"))
    add_data_arguments(commands.add_parser("data", help="what a run reads: tokens, samples, epochs"))
    add_report_arguments(commands.add_parser("report", help="make one report of everything in a store"))
    add_pull_arguments(commands.add_parser("pull", help="fetch reports from a store"))
    add_compare_arguments(commands.add_parser("compare", help="whether results are slower than a baseline"))
    add_import_arguments(commands.add_parser("import", help="read older results into the same table"))
    add_checkpoints_arguments(commands.add_parser("checkpoints", help="see, check and take out checkpoints"))
    add_cluster_arguments(commands.add_parser("cluster", help="see the cluster, or try one on this machine"))
    add_slurm_arguments(
        commands.add_parser("slurm", help="a job for Slurm that runs a sweep or a run to its end")
    )
    add_doctor_arguments(commands.add_parser("doctor", help="what is wrong with nodes, links and the store"))
    add_explain_arguments(commands.add_parser("explain", help="what a word of the output means"))
    _add_completion_arguments(commands.add_parser("completion", help="make the Tab key complete commands"))
    return parser


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a script with which a shell completes commands and flags."
    parser.epilog = 'in ~/.bashrc: eval "$(longhaul completion bash)"; exit codes: 0 printed; 2 wrong usage'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
