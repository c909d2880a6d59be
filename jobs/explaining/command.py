"""``longhaul explain`` says what a word of Longhaul's output means. It asks nobody and reads no file."""

import argparse
import textwrap
from collections.abc import Sequence
from itertools import groupby

from jobs.commandline.exit_codes import EXIT_OK, EXIT_USAGE, run_command
from jobs.commandline.output import printable
from jobs.commandline.usage_error import SpecError
from jobs.explaining.entry import Entry, find, similar
from jobs.explaining.glossary import glossary

_MOST_CHARS = 80
_COLUMNS = 100
_TIE = "\xa0"


def explain(args: argparse.Namespace) -> int:
    return run_command("explain", lambda: _explain(" ".join(args.words)), {SpecError: EXIT_USAGE})


def _explain(word: str) -> int:
    known = glossary()
    if not word.strip():
        print(_listed(known))
        return EXIT_OK
    found = find(word, known)
    if not found:
        raise SpecError([_unknown(word, known)])
    print(printable("\n\n".join(_shown(entry) for entry in found)))
    return EXIT_OK


def _shown(entry: Entry) -> str:
    lines = [f"{entry.word}: {entry.kind}"]
    for text in filter(None, (entry.meaning, entry.advice)):
        lines += textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def _unknown(word: str, known: Sequence[Entry]) -> str:
    near = similar(word, known)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`longhaul explain` lists all"
    shown = " ".join(word.split())
    return f"nothing is called {shown[:_MOST_CHARS]!r}; {hint}"


def _listed(known: Sequence[Entry]) -> str:
    blocks = []
    for kind, same in groupby(known, key=lambda entry: entry.kind):
        # A word of two words stays on one line.
        words = ", ".join(dict.fromkeys(entry.word.replace(" ", _TIE) for entry in same))
        lines = textwrap.wrap(
            words, _COLUMNS, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  "
        )
        blocks.append("\n".join([f"{kind}:", *lines]).replace(_TIE, " "))
    return "\n".join(blocks)
