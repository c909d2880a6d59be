"""The protocol of what samples are read from."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class SampleSource(Protocol):
    """Reads samples by number; samples from ``Task.num_samples`` on are held out of the training."""

    def read(self, numbers: Sequence[int]) -> Tensor:
        """A row for each."""

    def expect(self, steps: Sequence[Sequence[int]]) -> None:
        """Announces the next reads, each by its numbers, so that slow ones may begin."""

    def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
        """Whether ``read`` could return these samples at once, now or within ``timeout_s``."""
