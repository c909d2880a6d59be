"""Reads an object whole, but never more of it than the caller can hold, whoever wrote it.

A size that was asked for says nothing of the bytes that are read afterwards: whoever wrote the object may
replace it in between. So each read has room for what the caller takes and one byte more, and no further.
"""

from checkpointing.stores.contract import Store

# Most small objects fit, so that one request reads them.
_FIRST_BYTES = 256 * 1024
# What we write as JSON has more than ten bytes for each value. In small objects there may be any.
_LEAST_BYTES_PER_VALUE = 8
_ANY_VALUES = 2**22
# Each value but the first has one of these before it, and each key too. Texts may hold more of them.
_MARKS = (b",", b":", b"[", b"{")


class TooLarge(Exception):
    """The object is larger than what is ever read of its kind. The message says how large it is."""


def get_bounded(store: Store, name: str, *, most_bytes: int, likely_bytes: int | None = None) -> bytes:
    """Returns the object's bytes, with one request if it has at most ``likely_bytes``. Raises ``TooLarge``
    instead of reading more than ``most_bytes`` and one, and what ``Store.get_range`` raises.
    """
    at_once = min(_FIRST_BYTES if likely_bytes is None else likely_bytes + 1, most_bytes + 1)
    if (data := _fewer_than(store, name, at_once)) is not None:
        return data
    num_bytes = store.size(name)
    for room in (num_bytes + 1, most_bytes + 1):  # The second one if the object grew meanwhile.
        if num_bytes > most_bytes:
            raise TooLarge(f"has {num_bytes:,} bytes, at most {most_bytes:,} are read")
        if (data := _fewer_than(store, name, room)) is not None:
            return data
    raise TooLarge(f"has grown beyond the {most_bytes:,} bytes that are read")


def excess_of(text: bytes, *, most_values: int | None = None) -> str | None:
    """Says why JSON that anybody may have written is not to be parsed; None if it may be.

    Parsed, a byte of ``[[]],[[]],...`` takes 36 of memory.
    """
    num_values = sum(map(text.count, _MARKS))
    most = max(_ANY_VALUES, len(text) // _LEAST_BYTES_PER_VALUE)
    if most_values is not None:
        most = min(most, most_values)
    return f"{num_values:,} keys and values in {len(text):,} bytes" if num_values > most else None


def _fewer_than(store: Store, name: str, num_bytes: int) -> bytes | None:
    """Returns the object if it has fewer than ``num_bytes``, and never reads more of it."""
    room = memoryview(bytearray(num_bytes))
    count = store.get_range(name, 0, room)
    return bytes(room[:count]) if count < num_bytes else None
