"""Where a long run trained, group after group: how long, how fast, and for how much money."""

from dataclasses import replace

import pytest

from checkpointing.stores.memory import MemoryStore
from reporting.analysis.conclusions import conclude
from reporting.analysis.costs.money import cost_of, goodputs_of
from reporting.analysis.costs.prices import prices_of
from reporting.long_runs.stretches import Stretch
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun
from reporting.markdown.report import report_md
from reporting.page import index_html
from tests.unit.scenarios import Scenario, record

# Steps of 64 tokens and 2 s; a second before the load, and one of it.
MOVED = (
    Scenario(at_s=0, start=0, end=10, noticed_s=30, pause_s=70, world_size=2, group="nvidia"),
    Scenario(at_s=100, start=8, end=12, parent=1, ending="interruption", world_size=4, group="nvidia"),
    Scenario(at_s=200, start=12, end=20, parent=2, ending="end", world_size=4, group="amd"),
    Scenario(at_s=300, start=20, end=24, parent=3, ending="end", world_size=4, group="nvidia"),
)
PRICES = prices_of({"nvidia": {"usd_per_device_hour": 3.6}, "amd": {"usd_per_device_hour": 1.8}})


def moved(*, simulated: bool = False) -> LongRun:
    store = MemoryStore()
    record(store, MOVED)
    found = long_run(store, "r")
    assert found is not None
    stretches = tuple(replace(one, simulated=simulated) for one in found.stretches)
    return replace(found, stretches=stretches, simulated=simulated)


def test_attempts_one_after_another_in_a_group_are_one_stretch() -> None:
    found = moved().stretches
    assert [(one.group, one.at_s, one.num_attempts) for one in found] == [
        ("nvidia", 0.0, 2),
        ("amd", 200.0, 1),
        ("nvidia", 300.0, 1),
    ]
    # Two steps of the first attempt were done again.
    assert [one.num_steps for one in found] == [12, 8, 4]
    assert sum(one.num_steps for one in found) == moved().num_steps
    assert {one.tokens_per_sec for one in found} == {32.0}


def test_devices_are_counted_while_an_attempt_held_them_and_not_in_pauses() -> None:
    run = moved()
    assert run.wall_sec is not None
    # Until the first attempt's failure was known, and then each one's own seconds.
    seconds = (30.0, 10.0, 18.0, 10.0)
    assert [one.held_s for one in run.stretches] == pytest.approx([sum(seconds[:2]), *seconds[2:]])
    assert [one.device_s for one in run.stretches] == pytest.approx([2 * 30 + 4 * 10, 4 * 18, 4 * 10])
    assert sum(one.held_s for one in run.stretches) < run.wall_sec


def test_a_run_that_never_moved_is_one_stretch_with_all_its_steps() -> None:
    store = MemoryStore()
    record(store, [replace(one, group="amd") for one in MOVED])
    found = long_run(store, "r")
    assert found is not None
    assert [(one.group, one.num_steps) for one in found.stretches] == [("amd", 24)]


def test_a_stretch_costs_what_its_devices_cost_an_hour() -> None:
    one = moved().stretches[1]
    assert cost_of(replace(one, device_s=7200.0), PRICES) == pytest.approx(3.6)
    assert cost_of(one, None) is None
    assert cost_of(replace(one, group="intel"), PRICES) is None
    assert cost_of(replace(one, simulated=True), PRICES) is None


def test_a_run_of_several_groups_says_nothing_of_the_goodput_of_one() -> None:
    run = moved()
    assert goodputs_of([run]) == {}
    assert goodputs_of([replace(run, stretches=run.stretches[2:])]) == {"nvidia": run.goodput}


def shown(run: LongRun, *, prices: bool = True) -> tuple[str, str]:
    found = conclude("r", "results", [], runs=[run], prices=PRICES if prices else None)
    return report_md(found, []), index_html(found, [])


def test_the_report_shows_each_stretch_with_its_speed_and_its_cost_where_prices_are_given() -> None:
    run = replace(moved(), stretches=tuple(replace(one, device_s=7200.0) for one in moved().stretches))
    text, page = shown(run)
    assert "| run | group | after | attempts | steps | tokens/s | time | device hours | cost, USD |" in text
    assert "| r | amd | 3.33 min | 1 | 8 | 32.0 | 18.0 s | 2.00 | 3.60 |" in text
    assert "Where it trained, in turn" in page and "Cost, usd" not in page and "Cost, USD" in page
    text, page = shown(run, prices=False)
    assert "| device hours |\n" in text and "3.60" not in text
    assert "Cost, USD" not in page


def test_what_simulated_devices_would_have_cost_is_not_said() -> None:
    text, page = shown(moved(simulated=True))
    assert "| r | amd (simulated) | 3.33 min | 1 | 8 | 32.0 | 18.0 s | 0.0200 | – |" in text
    assert "amd (simulated)" in page and "0.0360" not in page


def test_a_run_that_stayed_has_no_table_of_stretches() -> None:
    run = moved()
    text, page = shown(replace(run, stretches=run.stretches[:1]))
    assert "in turn" not in text
    assert "in turn" not in page


def test_many_moves_are_cut_and_counted() -> None:
    one: Stretch = moved().stretches[0]
    text, page = shown(replace(moved(), stretches=(one,) * 500))
    assert text.count("| r | nvidia |") < 100
    assert "30 of 500 turns are shown" in page and "30 of 500 turns are shown" in text
