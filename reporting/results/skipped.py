"""A skipped file is one that a reader could not use, with the reason. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file of a store that was not read; ``reason`` says why."""

    name: str
    reason: str
