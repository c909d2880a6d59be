"""Which cells fit a budget and a deadline, from measured cells and beyond them."""

from collections.abc import Callable
from itertools import product
from math import log2
from random import Random
from statistics import median

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.costs.choosing import Bounds, Option, answer, options
from reporting.analysis.costs.extrapolating import ONE_NODE, extrapolated, predicted
from reporting.analysis.costs.money import money
from reporting.analysis.findings import CellSummary, Price, Prices
from reporting.results.rows import Row
from tests.unit.result_rows import row

DAY_S = 86_400.0
NOISE = (0.99, 1.0, 1.01, 0.995, 1.005)
PRICES = Prices(
    currency="USD",
    groups=(Price(group="amd", per_device_hour=2.0), Price(group="nvidia", per_device_hour=3.0)),
)


def cell(group: str, days: float, world_size: int = 8, strategy: str = "ddp", num: int = 5) -> list[Row]:
    """A cell that takes about ``days`` for a million tokens."""
    return [
        row(
            1e6 / (days * DAY_S) * NOISE[number],
            group=group,
            strategy=strategy,
            world_size=world_size,
            cell_id=f"{group}-{strategy}-{world_size}",
            run_id=f"{group}-{strategy}-{world_size}-{number}",
            nodes=("one", "two"),
        )
        for number in range(num)
    ]


def chosen(
    *rows: Row, budget: float | None = None, days: float | None = None, prices: Prices | None = PRICES
) -> tuple[tuple[Option, ...], str]:
    cells = summarise(rows)
    costs = money(cells, (), (), prices=prices, tokens=1e6)
    assert costs
    bounds = Bounds(budget=budget, deadline_days=days)
    found = options(cells, costs, bounds)
    return found, answer(found, costs, bounds)


def fits(found: tuple[Option, ...]) -> list[tuple[str, str]]:
    return [(option.cost.group, option.fit) for option in found]


def test_a_bound_is_kept_or_missed_only_by_the_whole_interval() -> None:
    found, _ = chosen(*cell("amd", 10.0), *cell("nvidia", 20.0), *cell("cpu", 14.95), days=15.0)
    assert fits(found) == [("amd", "yes"), ("cpu", "not sure"), ("nvidia", "no")]


def test_too_few_runs_are_never_sure() -> None:
    assert fits(chosen(*cell("amd", 10.0, num=2), days=15.0)[0]) == [("amd", "not sure")]
    assert fits(chosen(*cell("amd", 20.0, num=2), days=15.0)[0]) == [("amd", "not sure")]
    assert fits(chosen(*cell("amd", 40.0, num=2), days=15.0)[0]) == [("amd", "no")]


def test_without_a_price_a_budget_is_never_sure_to_be_kept() -> None:
    found, _ = chosen(*cell("cpu", 10.0), *cell("amd", 10.0), budget=1e9, days=15.0)
    assert fits(found) == [("amd", "yes"), ("cpu", "not sure")]


def test_the_cheapest_that_fits_comes_first_and_the_quickest_is_named_too() -> None:
    found, said = chosen(*cell("amd", 12.0), *cell("nvidia", 9.0), budget=10_000.0, days=15.0)
    assert fits(found) == [("amd", "yes"), ("nvidia", "yes")]
    assert said == (
        "2 cells of 2 can train 1M tokens within 15 days and for 10,000 USD. The cheapest is ddp on 8 "
        "devices of amd, micro-batch 1: 12.0 days and 4,608 USD. The quickest is ddp on 8 devices of nvidia, "
        "micro-batch 1: 9.00 days and 5,184 USD."
    )


def test_without_prices_a_deadline_alone_works_and_names_no_money() -> None:
    found, said = chosen(*cell("amd", 12.0), *cell("nvidia", 9.0), days=15.0, prices=None)
    assert fits(found) == [("nvidia", "yes"), ("amd", "yes")]
    assert said.startswith(
        "2 cells of 2 can train 1M tokens within 15 days. The quickest is ddp on 8 devices of"
    )
    assert "USD" not in said


@pytest.mark.parametrize(
    ("budget", "days", "expected"),
    [
        (None, 5.0, "the quickest is ddp on 8 devices of nvidia, micro-batch 1: 9.00 days and 5,184 USD."),
        (1_000.0, None, "the cheapest is ddp on 8 devices of amd, micro-batch 1: 12.0 days and 4,608 USD."),
        (5_000.0, 10.0, "what is quick enough costs too much, and what is cheap enough takes too long."),
    ],
)
def test_where_nothing_fits_the_nearest_is_named(
    budget: float | None, days: float | None, expected: str
) -> None:
    found, said = chosen(*cell("amd", 12.0), *cell("nvidia", 9.0), budget=budget, days=days)
    assert {option.fit for option in found} == {"no"}
    assert said.startswith("No measured cell can train 1M tokens") and said.endswith(expected)


def test_where_nothing_is_sure_the_first_that_may_fit_is_named() -> None:
    _, said = chosen(*cell("amd", 14.95), days=15.0)
    assert said.startswith("No cell is sure to train 1M tokens within 15 days; 1 cell may, first ddp on 8")


def _beyond(*rows: Row) -> list[CellSummary]:
    return list(extrapolated(summarise(rows)))


def _scaled(sizes: tuple[int, ...], **changes: object) -> list[Row]:
    """Perfect scaling but for 3 % lost per doubling."""
    return [
        row(
            1_000.0 * size * 0.97 ** log2(size) * noise,
            world_size=size,
            cell_id=f"size-{size}",
            run_id=f"size-{size}-{number}",
            **{"nodes": ("one", "two"), **changes},
        )
        for size in sizes
        for number, noise in enumerate(NOISE)
    ]


def test_twice_and_four_times_the_largest_size_are_guessed_with_an_interval_that_says_so() -> None:
    twice, four_times = _beyond(*_scaled((1, 2, 4, 8)))
    assert [each.subject.world_size for each in (twice, four_times)] == [16, 32]
    assert all("extrapolated" in each.flags and not each.rows for each in (twice, four_times))
    speed = four_times.tokens_per_sec
    assert speed and speed.low and speed.high
    assert speed.low < 32_000 * 0.97**5 < speed.high
    assert speed.median == pytest.approx(32_000 * 0.97**5, rel=0.02)


def test_two_sizes_are_too_few_and_what_was_imported_is_no_ground() -> None:
    assert _beyond(*_scaled((1, 8))) == []
    assert _beyond(*_scaled((1, 2, 4, 8), imported=True)) == []


def test_what_was_measured_within_one_node_is_never_sure_to_fit_on_several() -> None:
    cells = _beyond(*_scaled((1, 2, 4, 8), nodes=("one",)))
    assert all(ONE_NODE in each.flags for each in cells)
    costs = money(cells, (), (), prices=None, tokens=1e6)
    assert costs
    found = options(cells, costs, Bounds(budget=None, deadline_days=1e6), doubtful=(ONE_NODE,))
    assert {option.fit for option in found} == {"not sure"}


LAWS: dict[str, Callable[[int, float], float]] = {
    "lost per doubling": lambda size, loss: 2 ** (-loss * log2(size)),
    "time per doubling": lambda size, loss: 1 / (1 + loss * log2(size)),
    "a part that no device shares": lambda size, loss: 1 / (1 + loss * (size - 1) / size),
    "time per device": lambda size, loss: 1 / (1 + loss * size / 8),
    "nothing lost": lambda size, loss: 1.0,
}


@pytest.mark.parametrize(("law", "factor"), list(product(LAWS, (2, 4))))
def test_the_largest_size_held_back_lies_within_the_interval(law: str, factor: int) -> None:
    """Simulated, 400 trials each: sizes 1, 2, 4, 8 with 1 % noise and five runs, 1 to 8 % lost. Of the sizes
    held back, 16 and 32, the interval holds 97.8 to 100 %; with sizes up to 16 it holds 90 to 99 %.
    """
    random = Random(f"{law} {factor}")
    held = 0
    for _ in range(80):
        loss = random.uniform(0.01, 0.08)
        speeds = [
            (size, median(LAWS[law](size, loss) * (1 + random.gauss(0, 0.01)) for _ in range(5)))
            for size in (1, 2, 4, 8)
        ]
        found = predicted(speeds, 8 * factor)
        assert found.low and found.high
        held += found.low <= LAWS[law](8 * factor, loss) <= found.high
    assert held >= 0.9 * 80


def test_a_curve_that_no_line_fits_stays_within_bounds() -> None:
    found = predicted([(1, 1.0), (2, 1e-6), (4, 1e6)], 16)
    assert found.low and found.high
    assert 0 < found.low <= found.high <= 1.1e7


def test_a_doubt_makes_nothing_fit_that_does_not() -> None:
    cells = _beyond(*_scaled((1, 2, 4, 8), nodes=("one",)))
    costs = money(cells, (), (), prices=None, tokens=1e12)
    assert costs
    found = options(cells, costs, Bounds(budget=None, deadline_days=1e-6), doubtful=(ONE_NODE,))
    assert {option.fit for option in found} == {"no"}
