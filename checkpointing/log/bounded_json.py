"""Parses JSON that anybody may have written, in bounded memory. Pure.

Parsed, a byte of ``[[]],[[]],...`` takes 36 of memory. So the values are counted before anything is made of
them, and 64 MB that pass take less than 800. A writer asks for the same count before it commits.
"""

import json
from typing import Any

# What a save writes has more than ten bytes for each value. In small objects there may be any.
_LEAST_BYTES_PER_VALUE = 8
_ANY_VALUES = 2**22
# Each value but the first has one of these before it, and each key too. Texts may hold more of them.
_MARKS = (b",", b":", b"[", b"{")


def parsed(text: bytes) -> Any:
    """Raises ``ValueError`` if it is not JSON, or holds more than a writer of ours makes. The error's text
    follows the name of what was parsed.
    """
    if not text.isascii():  # One character of four bytes makes four of each byte.
        raise ValueError("is not JSON in ASCII")
    if excess := excess_of(text):
        raise ValueError(f"holds {excess}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error


def excess_of(text: bytes) -> str | None:
    """Says why ``parsed`` refuses ``text`` for its extent; None if it does not."""
    num_values = sum(map(text.count, _MARKS))
    most = max(_ANY_VALUES, len(text) // _LEAST_BYTES_PER_VALUE)
    return f"{num_values:,} keys and values in {len(text):,} bytes" if num_values > most else None
