"""A file of a store that a reader passed over, and why. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file that was not read, and why."""

    name: str
    reason: str
