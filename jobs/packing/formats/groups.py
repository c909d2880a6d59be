"""Records side by side, as many as are cut off together. Pure."""

from collections.abc import Iterable

from jobs.packing.pieces import PIECE_BYTES

GROUP_BYTES = PIECE_BYTES // 4


def groups_of(begins: Iterable[int], num_bytes: int) -> tuple[int, ...]:
    """The sizes of groups of records. ``begins`` are the bytes at which records begin, in order.

    The first group has all before the first record too, and each other one begins with a record.
    """
    cuts = [0]
    is_first = True
    for begin in begins:
        if not is_first and begin - cuts[-1] >= GROUP_BYTES:
            cuts.append(begin)
        is_first = False
    return tuple(end - start for start, end in zip(cuts, [*cuts[1:], num_bytes], strict=True))
