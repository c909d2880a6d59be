"""Defines the flags of ``longhaul checkpoints``. Pure: ``--help`` is instant."""

import argparse
from pathlib import Path

from jobs.commandline.options import add_wait

_EXIT_CODES = (
    "exit codes: 0 yes or done; 1 something is wrong or failed; 2 wrong usage, no such run or generation; "
    "3 undecided, because the store can't be read now; 130 interrupted"
)
_WHAT = "latest, backup, best, epoch:N, step:N or a generation's name"


def add_checkpoints_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "See, check, keep, tidy and take out a run's checkpoints."
    parser.epilog = _EXIT_CODES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_wait(_add_verb(verbs, "list", "what is kept, where and why, and how much room it takes"))
    show = _add_verb(verbs, "show", "one generation in detail")
    show.add_argument("what", metavar="WHAT", help=_WHAT)
    add_wait(show)
    _add_verify(verbs)
    pin = _add_verb(verbs, "pin", "keep a generation until it is unpinned")
    pin.add_argument("what", metavar="WHAT", help=_WHAT)
    unpin = _add_verb(verbs, "unpin", "let the rules decide about it again")
    unpin.add_argument("what", metavar="WHAT", help=_WHAT)
    gc = _add_verb(verbs, "gc", "show what crashed saves left; with --yes, delete it")
    gc.add_argument("--yes", action="store_true", help="delete what crashed saves left")
    gc.add_argument(
        "--unnamed",
        action="store_true",
        help="with --yes: also delete whole generations that the log does not name; they may be good",
    )
    fsck = _add_verb(verbs, "fsck", "check the log and what it keeps, by sizes and not by bytes")
    fsck.add_argument("--yes", action="store_true", help="repair what can be without losing anything")
    fsck.add_argument(
        "--rebuild",
        action="store_true",
        help="make a log from what is there, after reading every byte; it ends the run's driver",
    )
    adopt = _add_verb(
        verbs, "adopt", "take whole generations back into a log that does not name them, and pin them"
    )
    adopt.add_argument(
        "names", nargs="*", metavar="NAME", help="generations, as gc names them (default: all of this life)"
    )
    _add_export(verbs)


def _add_verify(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verify = _add_verb(verbs, "verify", "read every byte back; changes nothing unless told to")
    verify.add_argument("what", nargs="?", metavar="WHAT", help=f"{_WHAT} (default: all that is kept)")
    verify.add_argument(
        "--quarantine",
        action="store_true",
        help="have what is damaged never loaded; a run that resumes does so by itself",
    )


def _add_export(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = _add_verb(verbs, "export", "write the model as Hugging Face safetensors")
    export.add_argument(
        "what", nargs="?", default="latest", metavar="WHAT", help=f"{_WHAT} (default: latest)"
    )
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder that is new or empty")
    export.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="default: fp32, as it is saved"
    )


def _add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    parser.epilog = _EXIT_CODES
    parser.add_argument("--store", default="results", metavar="URL", help="default: results")
    parser.add_argument("--run", required=True, metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser
