"""Reads an object whole, but never more of it than the caller can hold, whoever wrote it."""

from checkpointing.stores.contract import Store

# Most small objects fit, so that one request reads them.
_FIRST_BYTES = 256 * 1024


class TooLarge(Exception):
    """The object is larger than what is ever read of its kind. The message says how large it is."""


def get_bounded(store: Store, name: str, *, most_bytes: int) -> bytes:
    """Returns the object's bytes. Raises ``TooLarge`` before it reads more than ``most_bytes``, and what
    ``Store.get`` raises.
    """
    room = memoryview(bytearray(_FIRST_BYTES))
    count = store.get_range(name, 0, room)
    if count < len(room):
        return bytes(room[:count])
    num_bytes = store.size(name)
    if num_bytes > most_bytes:
        raise TooLarge(f"has {num_bytes:,} bytes, at most {most_bytes:,} are read")
    return store.get(name)
