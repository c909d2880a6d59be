"""Rank 0's messages of saves: each is taken once, and those of dropped saves are deleted.

The mailbox keeps what nobody takes, and a receipt may have a hundred kilobytes. A rank may also post after
its save was dropped. Each rank carries its saves one after the other: once a message of a later save has come
from it, none comes for an earlier one.
"""

from collections import deque

from checkpointing.format.manifest import Cut
from checkpointing.saving.save import Mailbox, SaveFailed

WRITTEN, READ = "written", "read"


class Inbox:
    """``take`` and ``end`` belong to one thread; any may call ``skip``."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._taken: set[str] = set()
        self._skipped: deque[Cut] = deque()
        # For each rank the names that may still come, with the number of their save.
        self._late: dict[int, list[tuple[int, str]]] = {}

    def take(self, cut: Cut, what: str, rank: int, timeout_s: float) -> bytes:
        """Raises ``SaveFailed`` if ``rank`` posts nothing within ``timeout_s``."""
        name = message_name(cut, what, rank)
        message = self._mailbox.take(name, timeout_s, sender=rank)
        if message is None:
            raise SaveFailed(f"rank {rank}: nothing {what} within {timeout_s:g} s")
        self._taken.add(name)
        self._forget(rank, before=cut.number)
        return message

    def end(self, cut: Cut) -> None:
        """Deletes what was posted for ``cut`` and not taken: what is there now, and later what comes yet."""
        self._drop(cut)
        self._taken.clear()
        while self._skipped:
            self._drop(self._skipped.popleft())

    def skip(self, cut: Cut) -> None:
        """Notes that rank 0 has no share of ``cut``, so that ``end`` drops it too."""
        self._skipped.append(cut)

    def _drop(self, cut: Cut) -> None:
        for rank in range(cut.world_size):
            names = [message_name(cut, what, rank) for what in (WRITTEN, READ)]
            for name in (name for name in names if name not in self._taken):
                if not self._mailbox.discard(name):
                    self._late.setdefault(rank, []).append((cut.number, name))

    def _forget(self, rank: int, *, before: int) -> None:
        late = self._late.pop(rank, [])
        for number, name in late:
            if number < before:
                self._mailbox.discard(name)
        if rest := [entry for entry in late if entry[0] >= before]:
            self._late[rank] = rest


def message_name(cut: Cut, what: str, rank: int) -> str:
    return f"{cut.generation}/{rank}/{what}"
