"""Which samples each step reads, by seed and step alone: a resumed run repeats none. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from jobs.training.task.sample_order import FIRST_ORDER, SampleOrder, sample_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A batch sampler: iterating gives one rank's sample numbers of each step, without end.

    The stream has every sample once per epoch, in an order of its own; a batch may reach into the next epoch.
    """

    num_samples: int
    batch_size: int
    seed: int
    step: int
    rank: int
    world_size: int
    order: SampleOrder

    def __iter__(self) -> Iterator[list[int]]:
        step = self.step
        while True:
            yield self.of_step(step)
            step += 1

    def of_step(self, step: int) -> list[int]:
        first = (step * self.world_size + self.rank) * self.batch_size
        return [
            sample_at(position, num_samples=self.num_samples, seed=self.seed, order=self.order)
            for position in range(first, first + self.batch_size)
        ]


def batches(
    num_samples: int,
    batch_size: int,
    *,
    step: int = 0,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    order: SampleOrder = FIRST_ORDER,
) -> Batches:
    """The batches from ``step`` on, as a ``batch_sampler`` for torch's ``DataLoader``.

    ``order`` 2 shuffles few samples without a bias. A script must keep its order for as long as it goes on;
    ``run.batches`` does that by itself.
    """
    if num_samples < 1 or batch_size < 1:
        raise ValueError(f"{num_samples} samples in batches of {batch_size}; expected at least 1 of each")
    return Batches(
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        step=step,
        rank=rank,
        world_size=world_size,
        order=order,
    )
