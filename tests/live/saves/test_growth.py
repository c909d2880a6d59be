"""What the benchmark of many ranks computes and counts."""

import pytest

from tests.bench.counting_store import CountingStore
from tests.bench.growth import Cost, Row, exponent

SIZES = (8, 128, 1024, 16_384)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    found = exponent([(size, [3.0 * size**power] * 2) for size in SIZES])
    assert (found.value, found.low, found.high, found.last) == pytest.approx((power,) * 4, abs=1e-9)


def test_noise_widens_the_interval_and_a_fixed_cost_does_not_hide_the_end() -> None:
    found = exponent([(size, [1e6 + size**2.0, 1.5e6 + size**2.0]) for size in SIZES])
    assert found.low < found.value < found.high
    assert found.value < 0.9 and found.last > 1.7


@pytest.mark.parametrize(("power", "is_met"), [(1.0, True), (1.5, False)])
def test_what_grows_faster_than_ranks_is_a_miss(
    power: float, is_met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row(what="task", costs=[(size, [Cost(cpu_s=1e-3 * size**power)]) for size in SIZES])
    assert row.show() == is_met
    assert ("MISSED" in capsys.readouterr().out) != is_met


def test_the_store_lists_in_order_and_counts_a_request_for_each_thousand_names() -> None:
    store = CountingStore()
    for number in reversed(range(1500)):
        store.put(f"a/{number:04}", b"12")
    store.put("ab/x", b"")
    store.delete("a/0003")
    before = store.num_requests
    assert [*store.list("a")][:4] == ["a/0000", "a/0001", "a/0002", "a/0004"]
    assert store.num_requests - before == 2
    assert [*store.list("a", after="a/1497")] == ["a/1498", "a/1499"]
    assert [*store.list("none")] == [] and store.num_requests - before == 4
    store.put("a/0003", b"3")
    assert len([*store.list("a")]) == 1500
