"""Prices are what somebody says that a device of a group costs: a mapping, checked key by key. Pure.

``{h100: {usd_per_device_hour: 2.5, spot_usd_per_device_hour: 1.1, usd_per_kwh: 0.12}}``. Another currency
stands by its name in the keys. All groups have one currency, because nothing here knows exchange rates.
"""

import re
from collections.abc import Mapping
from math import isfinite

from reporting.analysis.findings import Price, Prices

EXAMPLE = "h100: {usd_per_device_hour: 2.5}"
_KEY = re.compile(r"(?P<spot>spot_)?(?P<currency>[a-z]{3})_per_(?P<unit>device_hour|kwh)")
_EXPECTED = (
    "expected CURRENCY_per_device_hour, spot_CURRENCY_per_device_hour or CURRENCY_per_kwh, with three small "
    "letters for the currency, such as usd_per_device_hour"
)


class PricesError(Exception):
    """Prices are not understood. Each problem says where, what was found and what was expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def prices_of(found: object) -> Prices:
    """Checks prices that were read from a file. Raises ``PricesError`` with all problems."""
    if not isinstance(found, Mapping) or not found:
        raise PricesError([f"expected a mapping of groups, such as {EXAMPLE}"])
    problems: list[str] = []
    currencies: dict[str, str] = {}
    groups = [_price(group, keys, currencies, problems) for group, keys in found.items()]
    if len(currencies) > 1:
        (one, first), (two, second) = list(currencies.items())[:2]
        problems.append(f"{first} is in {one}, {second} in {two}; expected one currency for all groups")
    if problems:
        raise PricesError(problems)
    known = sorted((price for price in groups if price), key=lambda price: price.group)
    return Prices(currency=next(iter(currencies)).upper(), groups=tuple(known))


def _price(group: object, keys: object, currencies: dict[str, str], problems: list[str]) -> Price | None:
    if not isinstance(group, str):
        problems.append(f"{group!r}: is not a group's name; put it in quotes")
        return None
    if not isinstance(keys, Mapping):
        problems.append(f"{group}: found {_shown(keys)}, expected a mapping, such as {EXAMPLE}")
        return None
    known: dict[str, float] = {}
    for key, value in keys.items():
        place = f"{group}.{key}"
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None or (match["spot"] and match["unit"] == "kwh"):
            problems.append(f"{place}: is not a price; {_EXPECTED}")
        elif not _is_price(value):
            problems.append(f"{place}: found {_shown(value)}, expected a number above 0")
        elif f"{match['spot'] or ''}{match['unit']}" in known:
            problems.append(f"{place}: is there in another currency too; expected one currency")
        else:
            currencies.setdefault(match["currency"], place)
            known[f"{match['spot'] or ''}{match['unit']}"] = float(value)
    if "device_hour" not in known:
        problems.append(
            f"{group}: has no price per device and hour; expected usd_per_device_hour or the like"
        )
        return None
    return Price(
        group=group,
        per_device_hour=known["device_hour"],
        spot_per_device_hour=known.get("spot_device_hour"),
        per_kwh=known.get("kwh"),
    )


def _is_price(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value) and 0 < float(value) < 1e9
    except OverflowError:
        return False


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a very long number"
    return text if len(text) <= 60 else f"{text[:59]}…"
