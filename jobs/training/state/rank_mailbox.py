"""Messages between ranks that need no collective: a small server of torch's in rank 0."""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from jobs.training.task.context import Context

_MEETING_TIMEOUT = timedelta(seconds=120)


class RankMailbox:
    """See ``checkpointing.saving.save.Mailbox``. Used by one thread of each rank."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def take(self, key: str, timeout_s: float) -> bytes | None:
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError:
            return None
        found: bytes = self._store.get(key)
        self._store.delete_key(key)
        return found


def open_mailbox(context: Context) -> RankMailbox:
    """Every rank calls it. It lives as long as rank 0 does."""
    # Where the ranks met: rank 0's node.
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = [0]
    if context.rank == 0:
        server = dist.TCPStore(  # type: ignore[attr-defined]  # torch does not list what it takes from C++
            address, 0, is_master=True, wait_for_workers=False
        )
        port = [server.port]
    dist.broadcast_object_list(port, src=0)
    if context.rank == 0:
        return RankMailbox(server)
    client = dist.TCPStore(  # type: ignore[attr-defined]  # as above
        address, port[0], is_master=False, timeout=_MEETING_TIMEOUT
    )
    return RankMailbox(client)
