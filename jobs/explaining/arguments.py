"""Defines the flags of ``longhaul explain``. Pure: ``--help`` is instant."""

import argparse


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what a word of Longhaul's output means, and what to do: a status, a finding, an alarm, a "
        "verdict, a column or an exit code. Without a word it lists them all."
    )
    parser.epilog = "exit codes: 0 explained; 2 nothing is called so"
    parser.add_argument("words", nargs="*", metavar="WORD", help="such as oom, given up, mfu, exit code 3")
