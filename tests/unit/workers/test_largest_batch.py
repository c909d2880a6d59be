"""The search for the largest micro-batch that fits, against every answer that there can be."""

from math import log2

import pytest

from jobs.training.task.search.largest_batch import BatchSearch, divisors


def searched(sequences: int, guess: int, fitting: int, candidates: tuple[int, ...] = ()) -> BatchSearch:
    """The finished search where micro-batches up to ``fitting`` have room."""
    sizes = candidates or divisors(sequences)
    search = BatchSearch(sequences=sequences, candidates=sizes, guess=guess)
    while (size := search.next_trial) is not None:
        search = answered(search.now_trying(size), fitting)
    return search


def answered(search: BatchSearch, fitting: int) -> BatchSearch:
    assert search.trying is not None
    return search.fits() if search.trying <= fitting else search.ran_out()


@pytest.mark.parametrize("sequences", [1, 2, 7, 12, 64, 96, 360, 1024])
def test_every_answer_is_found_in_as_few_trials_as_promised_from_every_guess(sequences: int) -> None:
    sizes = divisors(sequences)
    for guess in sizes:
        for fitting in (0, *sizes):
            search = searched(sequences, guess, fitting)
            assert search.largest == (fitting or None)
            assert search.num_trials <= log2(len(sizes)) + 2
            assert search.goes_on == (fitting > 0)


def test_a_right_forecast_takes_two_trials_and_one_if_all_fits() -> None:
    assert [searched(64, 8, 8).fitted, searched(64, 8, 8).failed] == [(8,), (16,)]
    assert searched(64, 64, 64).num_trials == 1


def test_a_wrong_forecast_is_left_by_doubling_and_halving() -> None:
    low, high = searched(64, 4, 16), searched(64, 16, 4)
    assert (low.fitted, low.failed) == ((4, 8, 16), (32,))
    assert (high.fitted, high.failed) == ((2, 4), (16, 8))


def test_numbers_that_do_not_divide_the_sequences_are_no_candidates() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert searched(12, 4, 5).largest == 4


def test_a_search_goes_on_elsewhere_with_what_it_knows() -> None:
    whole = searched(64, 4, 16)
    search = BatchSearch(sequences=64, candidates=divisors(64), guess=4)
    for size in (*whole.fitted, *whole.failed):
        search = answered(search.now_trying(size), 16)
    assert (search.next_trial, search.largest) == (None, 16)


def test_what_fitted_and_then_ran_out_as_it_was_measured_does_not_fit() -> None:
    search = searched(64, 8, 8).now_trying(8).ran_out()
    while (size := search.next_trial) is not None:
        search = answered(search.now_trying(size), 4)
    assert search.largest == 4
    assert searched(64, 1, 1).now_trying(1).ran_out().goes_on is False
