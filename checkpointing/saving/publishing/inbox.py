"""What other ranks tell this one of saves. Each message is taken once; those of dropped saves are deleted.

The mailbox keeps what nobody takes, and a receipt may have a hundred kilobytes. A rank may also post after
its save was dropped. Each rank carries its saves one after the other: once a message of a later save has come
from it, none comes for an earlier one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from checkpointing.format.manifest import Cut
from checkpointing.saving.save import Mailbox, SaveFailed

WRITTEN, READ = "written", "read"

Senders = Callable[[Cut], Mapping[int, Sequence[int]]]
"""The ranks that post here for a save, each with those others whose receipts it may pass on."""


class Inbox:
    """``take`` and ``end`` belong to one thread; any may call ``skip``."""

    def __init__(self, mailbox: Mailbox, senders: Senders) -> None:
        self._mailbox = mailbox
        self._senders = senders
        self._taken: set[str] = set()
        self._skipped: deque[Cut] = deque()
        # For each sender the names that may still come, with the number of their save.
        self._late: dict[int, list[tuple[int, str]]] = {}

    def take(self, cut: Cut, what: str, rank: int, timeout_s: float, *, sender: int | None = None) -> bytes:
        """Returns what ``rank`` posts, or ``sender`` for it. Raises ``SaveFailed`` if nothing comes within
        ``timeout_s``.
        """
        sender = rank if sender is None else sender
        name = message_name(cut, what, rank)
        message = self._mailbox.take(name, timeout_s, sender=sender)
        if message is None:
            raise SaveFailed(f"rank {rank}: nothing {what} within {timeout_s:g} s")
        self._taken.add(name)
        self._forget(sender, before=cut.number)
        return message

    def expect_no_receipts(self, cut: Cut, ranks: Iterable[int]) -> None:
        """Notes that none is passed on of ``ranks``, so that ``end`` looks for none."""
        self._taken.update(message_name(cut, WRITTEN, rank) for rank in ranks)

    def end(self, cut: Cut) -> None:
        """Deletes what was posted for ``cut`` and not taken: what is there now, and later what comes yet."""
        self._drop(cut)
        self._taken.clear()
        while self._skipped:
            self._drop(self._skipped.popleft())

    def skip(self, cut: Cut) -> None:
        """Notes that this rank has no share of ``cut``, so that ``end`` drops it too."""
        self._skipped.append(cut)

    def _drop(self, cut: Cut) -> None:
        for sender, others in self._senders(cut).items():
            for name in self._left(cut, sender, others):
                if not self._mailbox.discard(name):
                    self._late.setdefault(sender, []).append((cut.number, name))

    def _left(self, cut: Cut, sender: int, others: Sequence[int]) -> Iterator[str]:
        names = [message_name(cut, WRITTEN, rank) for rank in (*others, sender)]
        names.append(message_name(cut, READ, sender))
        return (name for name in names if name not in self._taken)

    def _forget(self, sender: int, *, before: int) -> None:
        late = self._late.pop(sender, [])
        for number, name in late:
            if number < before:
                self._mailbox.discard(name)
        if rest := [entry for entry in late if entry[0] >= before]:
            self._late[sender] = rest


def message_name(cut: Cut, what: str, rank: int) -> str:
    return f"{cut.generation}/{rank}/{what}"
