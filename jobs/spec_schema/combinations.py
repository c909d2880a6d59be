"""Says which values of a spec exclude each other, for runs and for the cells of a sweep. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from jobs.training.task.job import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A value that can't go with another one. ``reason`` says what was found and what was expected."""

    key: str
    reason: str


def impossible(recipe: Recipe) -> list[Impossible]:
    """What is wrong with a recipe whose values are all right by themselves; empty if it can be trained."""
    return [Impossible(key=key, reason=reason) for key, check in _CHECKS if (reason := check(recipe))]


def _too_long(recipe: Recipe) -> str | None:
    longest = recipe.model.max_seq_len
    if recipe.seq_len <= longest:
        return None
    return (
        f"{recipe.seq_len} is longer than {recipe.model.name}'s {longest} positions; expected a shorter one"
    )


def _cannot_compile(recipe: Recipe) -> str | None:
    if recipe.compile == "none" or recipe.strategy != "zero3":
        return None
    return "block can't be had under zero3, which gathers weights inside of blocks; expected none, or fsdp"


_CHECKS: tuple[tuple[str, Callable[[Recipe], str | None]], ...] = (
    ("seq_len", _too_long),
    ("compile", _cannot_compile),
)
