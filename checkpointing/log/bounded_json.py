"""Parses JSON that anybody may have written, in bounded memory. Pure.

The values are counted before anything is made of them, and 64 MB that pass take less than 800. A writer asks
for the same count before it commits.
"""

import json
from typing import Any

from checkpointing.stores.bounded import excess_of


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
