"""Counts what a chat template does, in steps, and ends it when it has had its share. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

MOST_STEPS = 200_000
# A step may read or make so many characters, or copy a tenth as many values of a list.
_STEP_CHARACTERS = 1_000
_VALUE_CHARACTERS = 100
T = TypeVar("T")


class TooManySteps(Exception):
    """The template takes longer than any of a model's."""


class Meter:
    """The steps of one rendering. Each method returns what it is given, so that it can stand around it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._steps = 0
        self._characters = 0  # fewer than a step's

    def step(self, number: int = 1) -> None:
        self._steps += number
        if self._steps > MOST_STEPS:
            raise TooManySteps(f"it takes more than {MOST_STEPS:,} steps")

    def characters(self, number: int) -> None:
        steps, self._characters = divmod(self._characters + number, _STEP_CHARACTERS)
        self.step(steps)

    def each_character(self, text: str) -> None:
        """Takes steps for a text that is gone through as a list of its characters is."""
        self.characters(len(text) * _VALUE_CHARACTERS)

    def values(self, value: T, each: int = _VALUE_CHARACTERS) -> T:
        """Takes steps for a text's characters, or for a list's values without what they hold."""
        if isinstance(value, str):
            self.characters(len(value))
        elif isinstance(value, Sized):
            self.characters(len(value) * each)
        return value

    def everything(self, value: T) -> T:
        """Takes steps for all that ``value`` holds, since it is compared or searched."""
        self.step()
        waiting: list[Any] = [value]
        while waiting:
            held = self.values(waiting.pop(), each=_STEP_CHARACTERS)
            if isinstance(held, Mapping):
                waiting += held.values()
            elif isinstance(held, list | tuple):
                waiting += held
        return value

    def key(self, value: T) -> T:
        """Takes steps for what a dict hashes and compares to find ``value``."""
        return self.everything(value) if isinstance(value, tuple) else self.values(value)

    def loop(self, items: Iterable[T], weight: int = 0) -> Iterable[T]:
        """Takes a step for each item, and ``weight`` more for what the loop holds. Also while a list changes
        its kind to a generator.
        """
        if isinstance(items, Sized):
            self.step(1 + len(items) * (1 + weight))
            return items
        return self.each(items, weight)

    def each(self, items: Iterable[T], weight: int = 0) -> Iterator[T]:
        for item in items:
            self.step(1 + weight)
            yield item
