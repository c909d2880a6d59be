"""Merges the fingerprints of all ranks into one that a result has room for. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

_MAX_BYTES, _MAX_VALUE_CHARS, _MAX_NAME_CHARS = 3_000, 120, 40


def merged(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """One fingerprint for all ranks. Where they differ, a fact says how many ranks have which value.

    At most 3,000 bytes: facts are kept in their order, and ``left out`` counts those that had no room.
    """
    names = list(dict.fromkeys(name for facts in ranks for name in facts))
    kept: dict[str, str] = {}
    room = _MAX_BYTES
    for name in names:
        value = _one_line(_value_of([facts.get(name, "unknown") for facts in ranks]), _MAX_VALUE_CHARS)
        room -= len(name.encode()) + len(value.encode()) + len('"":"",')
        if room < 0:
            return kept | {"left out": f"{len(names) - len(kept)} facts"}
        kept[_one_line(name, _MAX_NAME_CHARS)] = value
    return kept


def _value_of(values: Sequence[str]) -> str:
    counts = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    if len(counts) == 1:
        return values[0]
    return "; ".join(f"{value} on {count} of {len(values)} ranks" for value, count in counts)


def _one_line(text: str, most: int) -> str:
    return " ".join(text.split())[:most]
