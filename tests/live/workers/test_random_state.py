"""A rank that resumes draws the random numbers that it would have drawn."""

import random
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch

from jobs.training.state.random_state import RandomState, digest_of_next_numbers
from tests.live.trainings import CPU

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": numpy.random.random_sample,
    "torch": lambda: torch.rand(()).item(),
}


@pytest.fixture(autouse=True)
def in_the_middle() -> Iterator[None]:
    """Generators that have drawn before, each with the second normal number of a pair still to come."""
    before = RandomState(0, CPU)
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    draw()
    random.gauss()
    numpy.random.standard_normal()
    yield
    before.restore()


def draw() -> list[float]:
    normal = [random.gauss(), float(numpy.random.standard_normal()), torch.randn(()).item()]
    return [*normal, *(float(draw_one()) for draw_one in DRAWS.values() for _ in range(1000))]


def test_after_a_restore_every_generator_draws_what_it_would_have_drawn() -> None:
    state = RandomState(0, CPU)
    expected = draw()
    assert draw() != expected
    state.restore()
    assert draw() == expected


def test_the_state_goes_from_one_process_to_the_next_as_bytes() -> None:
    saved = [bytes(piece.values.tolist()) for piece in RandomState(0, CPU).pieces()]
    expected = draw()
    other = RandomState(0, CPU)
    for piece, data in zip(other.pieces(), saved, strict=True):
        piece.values.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    other.restore()
    assert draw() == expected


def test_a_capture_fills_the_same_pieces_again() -> None:
    state = RandomState(3, CPU)
    before = [(piece.name, piece.shape, piece.values.data_ptr()) for piece in state.pieces()]
    draw()
    state.capture()
    expected = draw()
    assert [(piece.name, piece.shape, piece.values.data_ptr()) for piece in state.pieces()] == before
    assert [name for name, *_ in before] == ["rng/3/python", "rng/3/numpy", "rng/3/torch"]
    state.restore()
    assert draw() == expected


def test_a_canary_moves_no_generator() -> None:
    state = RandomState(0, CPU)
    expected = draw()
    state.restore()
    digest_of_next_numbers(CPU)
    assert draw() == expected


def test_a_canary_is_the_same_again_after_a_restore() -> None:
    state = RandomState(0, CPU)
    before = digest_of_next_numbers(CPU)
    draw()
    state.restore()
    assert digest_of_next_numbers(CPU) == before


@pytest.mark.parametrize("moved", DRAWS)
def test_a_canary_tells_if_any_generator_has_moved(moved: str) -> None:
    before = digest_of_next_numbers(CPU)
    DRAWS[moved]()
    assert digest_of_next_numbers(CPU) != before


@pytest.mark.parametrize("draw_normal", (random.gauss, numpy.random.standard_normal))
def test_a_canary_tells_if_only_half_of_a_pair_was_drawn(draw_normal: Callable[[], float]) -> None:
    before = digest_of_next_numbers(CPU)
    draw_normal()  # The second half, for which nothing new is drawn.
    assert digest_of_next_numbers(CPU) != before
