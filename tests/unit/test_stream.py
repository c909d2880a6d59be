"""The order of samples: each once per epoch, and nothing but the seed and the position decides."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.training.stream import epoch_ended, sample_at

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**64)
EPOCHS = st.integers(0, 10**9)


def epoch_of(epoch: int, num_samples: int, seed: int) -> list[int]:
    first = epoch * num_samples
    return [sample_at(first + index, num_samples=num_samples, seed=seed) for index in range(num_samples)]


@given(num_samples=SIZES, seed=SEEDS, epoch=EPOCHS)
def test_an_epoch_has_each_sample_exactly_once(num_samples: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_of(epoch, num_samples, seed)) == list(range(num_samples))


# Of so many samples two orders are the same by chance once in some 10^28.
@given(
    num_samples=st.integers(50, 300), seed=SEEDS, epochs=st.lists(EPOCHS, min_size=2, max_size=3, unique=True)
)
def test_every_epoch_has_an_order_of_its_own(num_samples: int, seed: int, epochs: list[int]) -> None:
    orders = {tuple(epoch_of(epoch, num_samples, seed)) for epoch in epochs}
    assert len(orders) == len(epochs)


@given(num_samples=st.integers(50, 300), seed=SEEDS, epoch=EPOCHS)
def test_another_seed_gives_another_order(num_samples: int, seed: int, epoch: int) -> None:
    assert epoch_of(epoch, num_samples, seed) != epoch_of(epoch, num_samples, seed + 1)


@given(num_samples=SIZES, seed=SEEDS, data=st.data())
def test_where_and_how_often_it_was_asked_before_changes_nothing(
    num_samples: int, seed: int, data: st.DataObject
) -> None:
    """As for a run that is resumed in the middle, and for ranks that each ask for their share alone."""
    straight = epoch_of(0, num_samples, seed) + epoch_of(1, num_samples, seed)
    asked = data.draw(st.lists(st.integers(0, 2 * num_samples - 1), max_size=30))
    found = [sample_at(position, num_samples=num_samples, seed=seed) for position in asked]
    assert found == [straight[position] for position in asked]


def test_the_order_of_a_run_that_was_begun_long_ago_still_holds() -> None:
    """A changed order would repeat and lose samples of every run that is resumed across the change."""
    assert epoch_of(0, 12, seed=0) == [9, 10, 0, 5, 1, 7, 4, 6, 2, 3, 11, 8]
    assert epoch_of(1, 12, seed=0) == [11, 5, 4, 10, 8, 2, 3, 0, 1, 6, 7, 9]
    assert epoch_of(0, 12, seed=7) == [4, 0, 3, 10, 9, 2, 6, 8, 1, 5, 11, 7]


@given(num_samples=SIZES, before=st.integers(0, 10**6), step=st.integers(1, 500))
def test_an_epoch_ended_where_its_last_sample_was_taken(num_samples: int, before: int, step: int) -> None:
    after = before + step
    ended = [
        position // num_samples for position in range(before + 1, after + 1) if position % num_samples == 0
    ]
    assert epoch_ended(before, after, num_samples=num_samples) == (ended[-1] if ended else None)
