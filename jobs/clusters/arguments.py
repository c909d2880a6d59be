"""Defines the flags of ``longhaul cluster``. Pure: ``--help`` is instant."""

import argparse
from pathlib import Path

_LOCAL_EXIT_CODES = (
    "exit codes: the command's own; 1 the cluster did not start; 2 wrong usage or file; 127 no such command; "
    "130 interrupted"
)
_SHOW_EXIT_CODES = (
    "exit codes: 0 shown, and as FILE promises; 1 something is there that breaks the promise; 2 wrong usage "
    "or file, or no cluster; 3 less is there than promised, or more"
)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "See the running cluster, or try one out on this machine."
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_show(verbs)
    _add_local(verbs)


def _add_show(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    show = verbs.add_parser("show", help="the groups and nodes that are there, and those that are not")
    show.description = "The groups and nodes of the cluster that RAY_ADDRESS names, lost ones too."
    show.epilog = _SHOW_EXIT_CODES
    show.add_argument("--cluster", type=Path, metavar="FILE", help="hold it against this cluster.yaml")
    show.add_argument("--json", action="store_true", help="print JSON on standard output")


def _add_local(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    local = verbs.add_parser("local", help="a mixed cluster on this machine, for one command")
    local.usage = "longhaul cluster local [-h] FILE -- COMMAND [ARGUMENT ...]"
    local.description = (
        "Start the nodes that FILE promises on this machine, with simulated devices, run a command as a "
        "driver of that cluster, and end everything after it."
    )
    local.epilog = _LOCAL_EXIT_CODES
    local.add_argument("file", type=Path, metavar="FILE", help="such as cluster/mixed.yaml")
    local.add_argument("run", nargs=argparse.REMAINDER, metavar="COMMAND", help="it finds RAY_ADDRESS set")
