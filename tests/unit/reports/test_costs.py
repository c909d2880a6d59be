"""What tokens and trainings cost at given prices, and at which price one group is worth another."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from jobs.commandline.usage_error import SpecError
from jobs.reports.prices_file import read_prices
from reporting.analysis.conclusions import conclude
from reporting.analysis.costs.prices import PricesError, prices_of
from reporting.analysis.findings import Findings, Money, as_plain
from reporting.charts.drawing import draw
from reporting.long_runs.summary import LongRun
from reporting.markdown.report import report_md
from reporting.page import index_html
from reporting.results.rows import Row
from tests.unit.result_rows import row

PRICES = {
    "amd": {"usd_per_device_hour": 1.8},
    "nvidia": {"usd_per_device_hour": 3.6, "spot_usd_per_device_hour": 0.9, "usd_per_kwh": 0.2},
}


def _rows(group: str, *throughputs: float, strategy: str = "ddp", **changes: object) -> list[Row]:
    return [
        row(value, group=group, cell_id=f"{group}-{strategy}", run_id=f"{group}-{strategy}-{number}",
            strategy=strategy, world_size=2, **changes)
        for number, value in enumerate(throughputs)
    ]  # fmt: skip


def _found(rows: list[Row], prices: object = PRICES, tokens: float | None = None, **more: object) -> Findings:
    given = None if prices is None else prices_of(prices)
    return conclude("trial", "results", rows, prices=given, tokens=tokens, **more)  # type: ignore[arg-type] # by name


def _money(findings: Findings) -> Money:
    assert findings.money
    return findings.money


def _run(group: str, goodput: float | None, wall_sec: float) -> LongRun:
    return LongRun(
        name=f"{group}-{wall_sec}", group=group, vendor=None, model="llama-tiny", strategy="ddp",
        world_size=2, num_steps=10, num_superseded=0, tokens_per_sec=1.0, wall_sec=wall_sec, goodput=goodput,
    )  # fmt: skip


def test_a_million_tokens_cost_the_device_hours_that_they_take() -> None:
    rows = _rows("nvidia", 1000.0, 1000.0, 1000.0, energy_joules_per_token=3.6)
    (cost,) = _money(_found(rows)).costs
    # 1e6 tokens at 1,000 tokens/s are 1,000 s of two devices: 2,000 / 3,600 hours at 3.60 USD.
    assert cost.per_million_tokens and cost.per_million_tokens.median == pytest.approx(2.0)
    assert cost.spot_per_million_tokens and cost.spot_per_million_tokens.median == pytest.approx(0.5)
    assert cost.kwh_per_million_tokens == pytest.approx(1.0)
    assert cost.energy_per_million_tokens == pytest.approx(0.2)
    assert cost.training is None


def test_a_faster_bound_of_throughput_is_a_lower_bound_of_the_cost() -> None:
    (cost,) = _money(_found(_rows("nvidia", 990.0, 1000.0, 1015.0))).costs
    found = cost.per_million_tokens
    assert found and found.low and found.high
    assert found.low < found.median < found.high


def test_a_training_includes_the_goodput_of_the_groups_long_runs_where_one_is_known() -> None:
    rows = [*_rows("nvidia", 1000.0), *_rows("amd", 1000.0)]
    runs = [_run("nvidia", 0.9, 3000.0), _run("nvidia", 0.5, 1000.0), _run("amd", None, 1000.0)]
    found = _money(_found(rows, tokens=86_400_000.0, runs=runs))
    assert found.goodputs == {"nvidia": pytest.approx(0.8)}
    amd, nvidia = (cost.training for cost in found.costs)
    assert amd and amd.goodput is None and amd.days.median == pytest.approx(1.0)
    assert nvidia and nvidia.days.median == pytest.approx(1.25)
    assert nvidia.cost and nvidia.cost.median == pytest.approx(1.25 * 24 * 2 * 3.6)
    assert nvidia.spot_cost and nvidia.spot_cost.median == pytest.approx(1.25 * 24 * 2 * 0.9)
    assert amd.spot_cost is None


def test_the_break_even_price_is_the_others_times_the_ratio_of_throughputs() -> None:
    rows = [*_rows("amd", 990.0, 1000.0, 1000.0, 1010.0), *_rows("nvidia", 1480.0, 1500.0, 1500.0, 1520.0)]
    (found,) = _money(_found(rows)).break_evens
    assert (found.baseline, found.other) == ("amd", "nvidia")
    assert found.price == pytest.approx(2.7)
    assert found.low and found.high and 2.6 < found.low < 2.7 < found.high < 2.8
    assert found.verdict == "dearer"


def test_with_one_price_alone_the_break_even_price_is_that_of_the_other_group() -> None:
    rows = [*_rows("amd", 990.0, 1000.0, 1000.0, 1010.0), *_rows("nvidia", 1480.0, 1500.0, 1500.0, 1520.0)]
    (found,) = _money(_found(rows, {"nvidia": {"eur_per_device_hour": 3.0}})).break_evens
    assert (found.baseline, found.other, found.other_price) == ("nvidia", "amd", None)
    assert found.price == pytest.approx(2.0) and found.verdict is None
    assert found.low and found.high and found.low < 2.0 < found.high


def test_what_has_too_few_repeats_has_a_price_and_no_verdict() -> None:
    (found,) = _money(_found([*_rows("amd", 1000.0), *_rows("nvidia", 1500.0)])).break_evens
    assert (found.low, found.high, found.verdict) == (None, None, "too few repeats")


def test_without_prices_nothing_is_guessed() -> None:
    rows = [*_rows("amd", 1000.0), *_rows("nvidia", 1500.0)]
    assert _found(rows, None).money is None
    found = _found(rows, None, tokens=1e9)
    assert all(cost.per_million_tokens is None and cost.training for cost in _money(found).costs)
    assert all(cost.training and cost.training.cost is None for cost in _money(found).costs)
    assert _money(found).break_evens == ()
    assert "cost_per_token" not in {chart.name for chart in draw(found)}


def test_the_answer_says_where_tokens_cost_least_and_what_a_device_is_worth() -> None:
    rows = [*_rows("amd", 990.0, 1000.0, 1000.0, 1010.0), *_rows("nvidia", 1480.0, 1500.0, 1500.0, 1520.0)]
    answer = _found([*rows, *_rows("l40s", 10.0)], tokens=15e12).answer
    sizes = "At 2 devices, S=64 and fp32, "
    assert any(
        said.startswith(f"{sizes}a million tokens of llama-tiny cost least on amd: 1.00 USD (")
        for said in answer
    )
    assert any(said.startswith(f"{sizes}15T tokens of llama-tiny take 173,611 days and ") for said in answer)
    assert any("for steps alone, since no measured long run on amd is known" in said for said in answer)
    assert any(said.startswith("A device of nvidia is worth 2.70 USD an hour (95 %: 2.") for said in answer)
    assert any("It costs 3.60: dearer in 1." in said for said in answer)
    assert "No price was given for l40s: nothing is said of what it costs there." in answer


def _cheapest(*rows: Row, **more: object) -> str:
    (said,) = (one for one in _found(list(rows), **more).answer if "a million tokens" in one)  # type: ignore[arg-type] # by name
    return said


def test_tokens_are_cheapest_among_cells_of_the_same_sizes() -> None:
    amd, nvidia = _rows("amd", 990.0, 1000.0, 1010.0), _rows("nvidia", 990.0, 1000.0, 1010.0)
    short_ones = _rows("nvidia", 9000.0, 9000.0, 9000.0, strategy="fsdp", seq_len=16, precision="bf16")
    more = _rows("nvidia", 8000.0, 8000.0, 8000.0, strategy="zero1", seq_len=16, precision="bf16")
    assert _cheapest(*amd, *nvidia, *short_ones, *more) == (
        "At 2 devices, S=64 and fp32, a million tokens of llama-tiny cost least on amd: 1.00 USD (0.969 to "
        "1.03) with ddp at micro-batch 1; nvidia 2.00 USD (1.94 to 2.06)."
    )


def test_who_is_not_shown_to_be_dearer_than_the_cheapest_is_named() -> None:
    amd, nvidia = _rows("amd", 990.0, 1000.0, 1010.0), _rows("nvidia", 1980.0, 1990.0, 2010.0)
    assert _cheapest(*amd, *nvidia).endswith(" Not shown to be dearer: nvidia.")
    few = _rows("nvidia", 1000.0)
    assert _cheapest(*amd, *few).endswith(" Not shown to be dearer: nvidia.")


def test_what_a_simulated_long_run_loses_says_nothing_of_what_a_training_costs() -> None:
    run = _run("amd", 0.5, 1000.0)
    rows, unreal = _rows("amd", 1000.0), _rows("amd", 1000.0, simulated=True)
    for own, of_run in ((rows, replace(run, simulated=True)), (unreal, run)):
        found = _money(_found(own, tokens=86_400_000.0, runs=[of_run]))
        assert found.goodputs == {}
        assert found.costs[0].training and found.costs[0].training.goodput is None
    assert _money(_found(rows, tokens=86_400_000.0, runs=[run])).goodputs == {"amd": 0.5}


def test_the_break_even_price_of_each_at_its_best_is_in_text_page_and_findings() -> None:
    amd = [
        *_rows("amd", 990.0, 1000.0, 1000.0, 1010.0),
        *_rows("amd", 1480.0, 1500.0, 1500.0, 1520.0, strategy="fsdp"),
    ]
    found = _found([*amd, *_rows("nvidia", 1980.0, 2000.0, 2000.0, 2020.0)])
    same, best = _money(found).break_evens, _money(found).best_break_evens
    assert [round(one.price, 2) for one in (*same, *best)] == [3.6, 2.4]
    assert best[0].low and best[0].high and best[0].low < 2.4 < best[0].high and best[0].verdict == "dearer"
    said = "Each at its best, a device of nvidia is worth 2.40 USD an hour (95 %: 2."
    assert any(one.startswith(said) for one in found.answer)
    text, page = report_md(found, []), index_html(found, [])
    assert "Each at its best:\n\n| its best setting | group |" in text and "| nvidia | 2.40 [2." in text
    assert "best-break-even-table" in page and '<td class="n" data-order="2.4">2.40' in page
    assert as_plain(found)["money"]["best_break_evens"][0]["price"] == pytest.approx(2.4)


def test_page_text_and_picture_show_costs_and_findings_hold_them() -> None:
    rows = [*_rows("amd", 990.0, 1000.0, 1000.0, 1010.0), *_rows("nvidia", 1480.0, 1500.0, 1500.0, 1520.0)]
    found = _found(rows, tokens=1e12)
    charts = draw(found)
    assert "cost_per_token" in {chart.name for chart in charts}
    page, text = index_html(found, charts), report_md(found, charts)
    assert "Break-even price" in page and "amd costs 1.80" in page and "dearer" in page
    assert "## Money" in text and "| nvidia | 2.70 [2." in text
    plain = as_plain(found)["money"]
    assert plain["prices"]["currency"] == "USD" and plain["tokens"] == 1e12
    assert plain["costs"][0]["per_million_tokens"]["median"] == pytest.approx(1.0)


def test_the_break_even_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of 1,000 simulated pairs of five runs a side with 1 % noise, at a true ratio of 1.25."""
    dice, num_held = Random(7), 0
    for _ in range(1000):
        amd = [1000 * dice.lognormvariate(0, 0.01) for _ in range(5)]
        nvidia = [1250 * dice.lognormvariate(0, 0.01) for _ in range(5)]
        (found,) = _money(_found([*_rows("amd", *amd), *_rows("nvidia", *nvidia)])).break_evens
        assert found.low and found.high
        num_held += found.low <= 1.8 * 1.25 <= found.high
    assert 930 <= num_held <= 970


@pytest.mark.parametrize(
    ("prices", "problem"),
    [
        (None, "expected a mapping of groups"),
        ([], "expected a mapping of groups"),
        ({}, "expected a mapping of groups"),
        ({"a": 2.5}, "a: found 2.5, expected a mapping"),
        ({1: {"usd_per_device_hour": 1}}, "1: is not a group's name; put it in quotes"),
        ({"a": {}}, "a: has no price per device and hour"),
        ({"a": {"usd_per_kwh": 1}}, "a: has no price per device and hour"),
        ({"a": {"dollars": 1}}, "a.dollars: is not a price; expected CURRENCY_per_device_hour"),
        ({"a": {"spot_usd_per_kwh": 1, "usd_per_device_hour": 1}}, "a.spot_usd_per_kwh: is not a price"),
        ({"a": {"usd_per_device_hour": 0}}, "a.usd_per_device_hour: found 0, expected a number above 0"),
        ({"a": {"usd_per_device_hour": -1}}, "expected a number above 0"),
        ({"a": {"usd_per_device_hour": True}}, "found True, expected a number"),
        ({"a": {"usd_per_device_hour": "2"}}, "found '2', expected a number"),
        ({"a": {"usd_per_device_hour": float("nan")}}, "expected a number above 0"),
        ({"a": {"usd_per_device_hour": 10**400}}, "found a very long number, expected a number above 0"),
        ({"a": {"usd_per_device_hour": 1, "eur_per_device_hour": 1}}, "is there in another currency too"),
        ({"a": {"usd_per_device_hour": 1}, "b": {"eur_per_device_hour": 1}}, "one currency for all groups"),
    ],
)  # fmt: skip
def test_prices_that_are_not_understood_are_one_line_each(prices: object, problem: str) -> None:
    with pytest.raises(PricesError) as raised:
        prices_of(prices)
    assert any(problem in each for each in raised.value.problems)
    assert all("\n" not in each for each in raised.value.problems)


def test_prices_are_read_from_their_own_file_or_from_a_cluster_file(tmp_path: Path) -> None:
    own, cluster = tmp_path / "prices.yaml", tmp_path / "cluster.yaml"
    own.write_text("amd: {usd_per_device_hour: 2}\nprices: {usd_per_device_hour: 1}\n")
    cluster.write_text("available_node_types: {}\nprices:\n  amd: {usd_per_device_hour: 2}\n")
    assert [price.group for price in read_prices(own).groups] == ["amd", "prices"]
    assert [price.group for price in read_prices(cluster).groups] == ["amd"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "prices.yaml:1: is not YAML"),
        ("available_node_types: {}", "prices.yaml: prices: expected a mapping of groups"),
        ("a: {usd_per_device_hour: x}", "prices.yaml: a.usd_per_device_hour: found 'x'"),
    ],
)
def test_a_file_that_holds_no_prices_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        read_prices(path)
    assert problem in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="can't be read"):
        read_prices(tmp_path / "none.yaml")


@pytest.mark.parametrize(("price", "verdict"), [(1.9, "cheaper"), (2.0, "undecided"), (2.1, "dearer")])
def test_a_price_within_the_break_even_interval_is_undecided(price: float, verdict: str) -> None:
    noise = (0.99, 1.0, 1.0, 1.01)
    rows = [row(1000.0 * part, group=group, cell_id=group) for group in ("a", "b") for part in noise]
    prices = {"a": {"usd_per_device_hour": 2.0}, "b": {"usd_per_device_hour": price}}
    (found,) = _money(_found(rows, prices)).break_evens
    assert found.low and found.high and 1.9 < found.low < 2.0 < found.high < 2.1
    assert found.verdict == verdict


def test_lost_time_costs_days_and_no_energy_of_steps() -> None:
    rows = _rows("nvidia", 1000.0, energy_joules_per_token=3.6)
    (cost,) = _money(_found(rows, tokens=2e6, runs=[_run("nvidia", 0.5, 1000.0)])).costs
    assert cost.training and cost.training.kwh == pytest.approx(2.0)


def test_where_a_group_lacks_the_cheapest_batch_that_is_said() -> None:
    large = [row(1500.0, group="amd", cell_id="large", per_device_batch=8)]
    rows = [*large, *(row(1000.0, group=group, cell_id=group) for group in ("amd", "nvidia"))]
    for said in (" is fastest per device ", " cost least on amd: "):
        (sentence,) = (one for one in _found(rows).answer if said in one)
        assert sentence.endswith(" With 8 sequences in a step there are no numbers of nvidia.")
    both = [*rows, row(1200.0, group="nvidia", cell_id="larger", per_device_batch=4, grad_accum=2)]
    assert not any("sequences in a step" in one for one in _found(both).answer)
