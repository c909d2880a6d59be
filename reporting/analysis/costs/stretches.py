"""Says of each turn of a group in a long run how long it took, how fast it was and what it cost. Pure."""

from reporting.analysis.costs.money import cost_of
from reporting.analysis.findings import Prices
from reporting.analysis.formatting import UNKNOWN, count, duration, number, short
from reporting.long_runs.stretches import Stretch


def stretch_heads(prices: Prices | None) -> tuple[str, ...]:
    """The columns; the first is text."""
    cost = (f"cost, {prices.currency}",) if prices else ()
    return ("group", "after", "attempts", "steps", "tokens/s", "time", "device hours", *cost)


def stretch_cells(stretch: Stretch, prices: Prices | None) -> tuple[str, ...]:
    cost = cost_of(stretch, prices)
    return (
        f"{short(stretch.group, 60)} (simulated)" if stretch.simulated else short(stretch.group, 60),
        duration(stretch.at_s),
        count(stretch.num_attempts),
        count(stretch.num_steps),
        number(stretch.tokens_per_sec),
        duration(stretch.held_s),
        number(stretch.device_s / 3600.0),
        *((UNKNOWN if cost is None else number(cost),) if prices else ()),
    )
