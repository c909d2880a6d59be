"""Reads samples of several places: each of a mixture from its own source, and held-out ones elsewhere."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from jobs.training.data.mixture import mixed_at, shares_of, stretches_of
from jobs.training.data.sample_source import SampleSource
from jobs.training.task.sample_order import SampleOrder
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Mixture


class MixedSource:
    """Samples are numbered through: first those to train on, source by source, then those held out, of each
    source in turn.
    """

    def __init__(
        self, mixture: Mixture, sources: Sequence[SampleSource], stretches: RecordedStretches = ()
    ) -> None:
        self._mixture = mixture
        self._sources = sources
        self._shares = shares_of(mixture)
        self._stretches = stretches_of(stretches)

    def number_at(self, position: int, *, seed: int, order: SampleOrder) -> int:
        source, number = mixed_at(position, self._shares, seed=seed, order=order, stretches=self._stretches)
        return sum(share.num_samples for share in self._shares[:source]) + number

    def source_of(self, number: int) -> int:
        return self._place(number)[0]

    def read(self, numbers: Sequence[int]) -> Tensor:
        rows = [iter(source.read(own) if own else ()) for source, own in self._divided(numbers)]
        return torch.stack([next(rows[self._place(number)[0]]) for number in numbers])

    def expect(self, steps: Sequence[Sequence[int]]) -> None:
        divided = [self._divided(numbers) for numbers in steps]
        for at, source in enumerate(self._sources):
            source.expect([step[at][1] for step in divided if step[at][1]])

    def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
        end, divided = time.monotonic() + timeout_s, self._divided(numbers)
        # All begin before one is waited for.
        were_there = [source.wait(own, 0.0) for source, own in divided]
        return all(
            was_there or source.wait(own, max(0.0, end - time.monotonic()))
            for was_there, (source, own) in zip(were_there, divided, strict=True)
        )

    def _divided(self, numbers: Sequence[int]) -> list[tuple[SampleSource, list[int]]]:
        """Each source, and what is asked of it by its own numbers."""
        places = [self._place(number) for number in numbers]
        return [
            (source, [own for place, own in places if place == at]) for at, source in enumerate(self._sources)
        ]

    def _place(self, number: int) -> tuple[int, int]:
        for at, share in enumerate(self._shares):
            if number < share.num_samples:
                return at, number
            number -= share.num_samples
        turn, at = divmod(number, len(self._shares))
        return at, self._shares[at].num_samples + turn


class BesideHeldOut:
    """Numbers from ``num_samples`` on are samples of ``held_out``, from its beginning on."""

    def __init__(self, source: SampleSource, num_samples: int, held_out: SampleSource) -> None:
        self._source = source
        self._num_samples = num_samples
        self._held_out = held_out

    def read(self, numbers: Sequence[int]) -> Tensor:
        source, own = self._of(numbers)
        return source.read(own)

    def expect(self, steps: Sequence[Sequence[int]]) -> None:
        """Nobody announces held-out samples."""
        self._source.expect(steps)

    def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
        source, own = self._of(numbers)
        return source.wait(own, timeout_s)

    def _of(self, numbers: Sequence[int]) -> tuple[SampleSource, Sequence[int]]:
        """Nobody asks for samples of both kinds together."""
        if min(numbers, default=0) < self._num_samples:
            return self._source, numbers
        return self._held_out, [number - self._num_samples for number in numbers]
