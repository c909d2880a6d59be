"""What holds of each record of a log, whoever wrote what in which order."""

from checkpointing.log.codec import LogRecord
from checkpointing.log.history import LogView, Tombstone, after


def check_step(before: LogView, record: LogRecord) -> None:
    """Each record follows from the one before, and takes nothing away that must stay."""
    assert record.view == after(before, record.entry)
    if isinstance(record.entry, Tombstone):
        kept = [one for name in record.entry.names if (one := before.generation(name))]
        assert not [one for one in kept if one.is_pinned]
        assert num_good(record.view) >= min(2, num_good(before))


def num_good(view: LogView) -> int:
    return sum(found.is_good for found in view.generations)
