"""What verdicts, levels and exit codes mean. Pure."""

from collections.abc import Iterator, Mapping

from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_COMMAND,
    EXIT_OK,
    EXIT_READER_GONE,
    EXIT_UNDECIDED,
    EXIT_USAGE,
)
from jobs.explaining.entry import Entry, Texts, entries

VERDICTS: Texts = {
    "faster": "The other side is faster: the interval of the ratio lies above 1, and beyond the threshold.",
    "slower": "The other side is slower: the interval of the ratio lies below 1, and beyond the threshold.",
    "equivalent": "The whole interval of the ratio lies within the threshold of 1.",
    "inconclusive": (
        "The interval is too wide to tell.",
        "Measure more repeats: it gets narrower.",
    ),
    "too few repeats": (
        "One side has fewer than 4 runs, from which no verdict follows.",
        "Raise repeats, and run the sweep again.",
    ),
    "cheaper": "A token costs less there, at these prices and by more than chance explains.",
    "dearer": "A token costs more there, at these prices and by more than chance explains.",
    "undecided": ("At these prices nobody can tell which is cheaper.", "Measure more repeats."),
}
LEVELS: Texts = {
    "warning": "Something is not as it should be. It may still be usable.",
    "unknown": "What a check needs was not measured, so that it says nothing.",
}
EXIT_CODES: Mapping[int, tuple[str, str] | str] = {
    EXIT_OK: "Done, or the answer is yes.",
    EXIT_FAILED: (
        "The answer is no, or the command failed: a cell is slower, a checkpoint is damaged.",
        "The last lines say why. A sweep with a failed cell ends so too: its row is an answer.",
    ),
    EXIT_USAGE: ("Something must be changed: a flag, a spec, a name.", "The message says what."),
    EXIT_UNDECIDED: "The question can't be decided, or the answer is yes with warnings.",
    EXIT_NO_COMMAND: "`longhaul cluster local` did not find the command that it should run.",
    EXIT_INTERRUPTED: ("Ctrl-C or a signal ended it.", "The same command goes on."),
    EXIT_READER_GONE: "Nobody reads its output any more, as in `longhaul ... | head -1`.",
}


def of_answers() -> Iterator[Entry]:
    yield from entries("verdict", VERDICTS)
    yield from entries("level of a finding", LEVELS)
    for code, text in EXIT_CODES.items():
        for word in (f"exit code {code}", str(code)):
            yield from entries("exit code of all commands", {word: text})
