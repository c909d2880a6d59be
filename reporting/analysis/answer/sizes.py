"""Sizes are what cells must have in common to be ranked in a sentence, and how it says them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from reporting.analysis.findings import LARGEST, Subject
from reporting.analysis.formatting import counted, joined, short

# Devices, sequence length, precision.
Sizes = tuple[int, int, str]


class Sized(Protocol):
    """A cell, or what a cell costs."""

    @property
    def group(self) -> str: ...
    @property
    def subject(self) -> Subject: ...


def sizes_of(subject: Subject) -> Sizes:
    return subject.world_size, subject.seq_len, subject.precision


def usual_sizes(cells: Iterable[Sized]) -> Sizes | None:
    """Returns the sizes that most groups have; of several the ones that most cells have, then the largest."""
    groups: dict[Sizes, list[str]] = {}
    for cell in cells:
        groups.setdefault(sizes_of(cell.subject), []).append(cell.group)
    return max(groups, key=lambda found: _rank(groups, found), default=None)


def _rank(groups: Mapping[Sizes, list[str]], found: Sizes) -> tuple[int, int, Sizes]:
    return len(set(groups[found])), len(groups[found]), found


def at_sizes(subject: Subject) -> str:
    """Returns the beginning of a sentence: ``At 2 devices, S=64 and fp32``."""
    devices = counted(subject.world_size, "device")
    return f"At {devices}, S={subject.seq_len} and {short(subject.precision, 20)}"


def without_its_batch(best: Sized, cells: Iterable[Sized]) -> Iterator[str]:
    """Yields a sentence if groups have no cell with as many sequences in a step: theirs do another training's
    work.
    """
    batches: dict[str, set[int]] = {}
    for cell in cells:
        batches.setdefault(cell.group, set()).add(cell.subject.sequences)
    wanted = best.subject.sequences
    if lacking := sorted(group for group, known in batches.items() if wanted not in known):
        yield f" With {counted(wanted, 'sequence')} in a step there are no numbers of {joined(lacking, 3)}."


def setting_of(subject: Subject) -> str:
    """Returns what a group chose, without a comma: ``ddp at micro-batch 4 with full checkpointing``."""
    is_largest = subject.micro_batch == LARGEST
    size = "the largest micro-batch" if is_largest else f"micro-batch {subject.micro_batch}"
    settings = f" with {subject.settings.replace(', ', ' and ')}" if subject.settings else ""
    return f"{short(subject.strategy, 40)} at {size}{settings}"
