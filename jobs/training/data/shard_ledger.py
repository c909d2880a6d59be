"""What a run knows of its shards, kept in its store: the digest of each, and the versions that were hashed.

Each rank writes what it found out in an attempt as one object, which no other rank or attempt writes. A later
attempt hashes only what it does not know. All objects lie in the folder of the run's present life: a fresh
start may have other data.

With the store's key each object is signed, and one that is not counts as not there. Without the ledger
everything is hashed again.
"""

import hashlib
import hmac
import json
import logging
import re
import threading
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from checkpointing.log.signing import store_key
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError
from jobs.training.ranks.typed_json import decode, encode
from jobs.training.task.token_index import KnownShard

# Those of a rank with a hundred thousand shards.
_MOST_BYTES = 32 * 2**20
# The oldest: they tell of the bytes that the run began with.
_MOST_OBJECTS = 4096
# Nodes that have the shards on disks of their own have a version each.
_MOST_VERSIONS = 64
_LONGEST_VERSION = 1000
_SHA256 = re.compile("[0-9a-f]{64}")
_OBJECT = re.compile(r"[0-9]{12}-[0-9]{6}\.json")
_NUM_READERS = 16
# A store that stands still holds up no training.
_LONGEST_WRITE_S = 20.0
_log = logging.getLogger(__name__)


def ledger_of(run: str, life_term: int, source: str | None = None) -> str:
    """The folder of one life of a run, which began in ``life_term``; with ``source`` that of one source of a
    mixture, since shards of several may have the same name.
    """
    below = f"{source}/" if source else ""
    return f"runs/{run}/shards/{below}{life_term:012}"


def read_ledger(store: Store, ledger: str, wanted: Container[str]) -> tuple[KnownShard, ...]:
    """What earlier attempts wrote of the ``wanted`` shards, each once. Raises ``StoreError`` if the store
    can't be read now.
    """
    key = store_key()
    names = sorted(name for name in store.list(ledger) if _is_of_the_life(name, ledger))[:_MOST_OBJECTS]
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        rows = pool.map(lambda name: _read(store, name, key), names)
        return merged(shard for row in rows for shard in row if shard.name in wanted)


def _is_of_the_life(name: str, ledger: str) -> bool:
    """Says whether the object's name is one that a rank gives. No others hide those of the first attempt."""
    last = name.rpartition("/")[2]
    return bool(_OBJECT.fullmatch(last)) and last >= ledger.rpartition("/")[2]


def merged(shards: Iterable[KnownShard]) -> tuple[KnownShard, ...]:
    """Each shard once. Of two digests the first counts: it is that of the bytes that the run began with."""
    found: dict[str, KnownShard] = {}
    for shard in shards:
        before = found.setdefault(shard.name, shard)
        if before.sha256 == shard.sha256:
            versions = tuple(dict.fromkeys((*before.versions, *shard.versions)))[-_MOST_VERSIONS:]
            found[shard.name] = KnownShard(name=shard.name, sha256=shard.sha256, versions=versions)
    return tuple(found.values())


class LedgerWriter:
    """Writes what one rank found out in one attempt. Never raises what the store does: it costs hashing."""

    def __init__(self, store: Store, ledger: str, *, term: int, rank: int) -> None:
        self._store = store
        self._name = f"{ledger}/{term:012}-{rank:06}.json"

    def write(self, shards: Sequence[KnownShard]) -> None:
        """Returns when the object is written, or takes too long, in which case it may be written later."""
        thread = threading.Thread(target=self._write, args=(shards,), name="shard ledger", daemon=True)
        thread.start()
        thread.join(_LONGEST_WRITE_S)

    def _write(self, shards: Sequence[KnownShard]) -> None:
        body = encode(tuple(shards))
        try:
            key = store_key()
            mac = _mac(key, self._name, body) if key else ""
            self._store.put(self._name, mac.encode() + b"\n" + body)
        except StoreError as error:
            _log.warning("data: what was hashed can't be kept with the run, so it is hashed again: %s", error)


def _read(store: Store, name: str, key: bytes | None) -> tuple[KnownShard, ...]:
    try:
        mac, _, body = get_bounded(store, name, most_bytes=_MOST_BYTES).partition(b"\n")
        if key and not hmac.compare_digest(mac, _mac(key, name, body).encode()):
            raise ValueError("is not signed with the store's key")
        found: tuple[KnownShard, ...] = decode(tuple[KnownShard, ...], body)
        if not all(_is_plain(shard) for shard in found):
            raise ValueError("has digests or versions that are none")
    except (Missing, TooLarge, ValueError) as error:
        _log.warning("data: %s/%s is left out: %s", store.url, name, str(error)[:300])
        return ()
    return found


def _is_plain(shard: KnownShard) -> bool:
    return bool(_SHA256.fullmatch(shard.sha256)) and all(
        len(word) <= _LONGEST_VERSION for word in shard.versions
    )


def _mac(key: bytes, name: str, body: bytes) -> str:
    return hmac.digest(key, json.dumps(["shards", name]).encode() + b"\n" + body, hashlib.sha256).hex()
