"""Reads the words of Slurm that a user gives: wall times, and options of sbatch. Pure."""

import re
import shlex
from collections.abc import Sequence

from jobs.commandline.usage_error import SpecError

_FORMS = (
    (r"(\d+)", (60,)),
    (r"(\d+):(\d+)", (60, 1)),
    (r"(\d+):(\d+):(\d+)", (3600, 60, 1)),
    (r"(\d+)-(\d+)", (86400, 3600)),
    (r"(\d+)-(\d+):(\d+)", (86400, 3600, 60)),
    (r"(\d+)-(\d+):(\d+):(\d+)", (86400, 3600, 60, 1)),
)  # fmt: skip
_ENDLESS = ("infinite", "unlimited")
# Slurm counts minutes, and takes what is longer for no limit or for a mistake, depending on its version.
_LONGEST_S = 366 * 86400
_SHORTEST_S = 60
# What the job's script relies on, or what would run it several times over.
_NOT_YOURS = ("--array", "-a", "--wrap", "--signal", "--no-requeue", "--export", "--input", "--ntasks", "-n")


def seconds_of(time: str | None) -> int | None:
    """Returns a wall time in seconds, or None where it has no end that is known here."""
    if time is None or time.lower() in _ENDLESS:
        return None
    found = ((re.fullmatch(pattern, time, re.ASCII), units) for pattern, units in _FORMS)
    match, units = next(((match, units) for match, units in found if match), (None, ()))
    if match is None or len(time) > 20:
        raise SpecError([f"--time: {time!r} is no wall time; expected such as 90, 12:00:00 or 2-00:00:00"])
    seconds = sum(int(number) * unit for number, unit in zip(match.groups(), units, strict=True))
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise SpecError([f"--time: {time} is {seconds} s; expected a minute to a year"])
    return seconds


def stop_before(asked: int | None, time_s: int | None) -> int:
    """Returns how many seconds before its end a job is asked to stop. Slurm may ask up to a minute sooner."""
    if asked is None:
        return min(300, time_s // 4) if time_s else 300
    if time_s and asked >= time_s:
        raise SpecError([f"--stop-before: {asked} s are the whole --time of {time_s} s; expected less"])
    if asked > 65535:
        raise SpecError([f"--stop-before: Slurm takes at most 65535 s, found {asked}"])
    return asked


def options_of(text: str, place: str) -> tuple[str, ...]:
    """Splits options of sbatch as a shell does, and refuses those that can't stand in a script."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError([f"{place}: {text!r}: {error}"]) from None
    if words and not words[0].startswith("-"):
        raise SpecError([f"{place}: found {words[0]!r}, expected options of sbatch, such as --partition=gpu"])
    for word in words:
        _check_word(word, place)
    return words


def _check_word(word: str, place: str) -> None:
    if word.partition("=")[0] in _NOT_YOURS:
        raise SpecError([f"{place}: {word.partition('=')[0]} is set by Longhaul; leave it out"])
    if any(not letter.isprintable() or letter in "\"\\'" for letter in word):
        raise SpecError([f"{place}: {word!r} has quotes, backslashes or line ends, which no script may have"])


def directive(words: Sequence[str]) -> str:
    """Returns one line of a script that sbatch reads as these options."""
    quoted = (word if re.fullmatch(r"[A-Za-z0-9_.,:=@%/+^\[\]-]+", word) else f'"{word}"' for word in words)
    return f"#SBATCH {' '.join(quoted)}"
