"""Defines the flags of ``longhaul data``. Pure: ``--help`` is instant."""

import argparse

from jobs.commandline.options import add_set

_MOST_DIGITS = 15


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what a training reads: tokens, documents, tokenizer, samples, epochs. It changes nothing."
    )
    parser.epilog = (
        "exit codes: 0 shown, and all bytes are right if they were compared; 1 some are others, or the store "
        "failed; 2 wrong usage, spec or data"
    )
    parser.add_argument(
        "what",
        metavar="PLACE|SPEC",
        help="where longhaul pack put tokens, or a run's YAML file (it ends with .yaml or .yml)",
    )
    add_set(parser, "seq_len=2048")
    parser.add_argument(
        "--step", type=_number, metavar="N", help="show which samples step N of a new run reads; needs a SPEC"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read all bytes and compare them with the index's SHA-256"
    )
    parser.add_argument(
        "--documents",
        action="store_true",
        help="read all tokens, for the number of documents, their lengths and copies; without it only "
        "tokens on a disk of this machine that are at most 64 MiB are read",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="the tokenizer.json that made the ids, to show how the first document begins; "
        "not needed of bytes, nor with a SPEC that names the file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of a step, such as 1")
    return int(text)
