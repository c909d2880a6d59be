"""Tries what the credentials at hand should not be allowed to do with a bucket.

Only objects that this trial itself has made, under names that say so, are written or deleted. Where deleting
is denied, as it should be, they stay: always the same ones, one in the store and one beside its prefix.
"""

from collections.abc import Callable
from contextlib import suppress

from checkpointing.stores.contract import Conflict, Denied, Missing, Store, StoreError
from checkpointing.stores.opening import open_store
from jobs.doctor.security.exposure import Trial

# Where a policy looks for a record of a log.
RECORD = "runs/longhaul-security-trial/log/trial"
# The folder of the bucket in which an object is written beside the store's prefix.
BESIDE = "longhaul-security-trial"
MARK = b"longhaul doctor --security: a trial of rights, nothing else\n"


def try_bucket(url: str, open_url: Callable[[str], Store] = open_store) -> Trial | None:
    """Returns what the bucket allows; None for a folder, whose modes say it."""
    scheme, is_bucket, place = url.partition("://")
    if not is_bucket or scheme == "file":
        return None
    allowed: list[str] = []
    refused: list[str] = []

    def note(what: str, attack: Callable[[], object]) -> None:
        (allowed if _works(attack) else refused).append(what)

    try:
        store = open_url(url)
        if _is_there(store):
            note("log records rewritten", lambda: store.put(RECORD, MARK))
            note("log records deleted", lambda: store.delete(RECORD))
        bucket, _, prefix = place.partition("/")
        if prefix.strip("/"):
            beside = open_url(f"{scheme}://{bucket}/{BESIDE}")
            note("writes beside the store's prefix", lambda: _write_and_remove(beside))
    except StoreError as error:
        return Trial(store=url, allowed=tuple(allowed), refused=tuple(refused), failed=str(error))
    return Trial(store=url, allowed=tuple(allowed), refused=tuple(refused))


def _is_there(store: Store) -> bool:
    """Makes the trial's record. False if these credentials can't, as a reader's can't. Raises ``StoreError``
    if an object of another's is there.
    """
    try:
        store.create(RECORD, MARK)
    except Conflict:
        _check_own(store, RECORD)
    except Denied:
        next(iter(store.list("runs")), None)  # Raises if they can't even read.
        return False
    return True


def _check_own(store: Store, name: str) -> None:
    if store.size(name) != len(MARK) or store.get(name) != MARK:
        raise StoreError(f"{name} is not the trial's own, and stays as it is")


def _write_and_remove(store: Store) -> None:
    try:
        store.create("trial", MARK)
    except Conflict:
        _check_own(store, "trial")
        store.put("trial", MARK)
    with suppress(Denied, Missing):
        store.delete("trial")


def _works(attack: Callable[[], object]) -> bool:
    try:
        attack()
    except Denied:
        return False
    return True
