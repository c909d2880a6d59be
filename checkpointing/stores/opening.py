"""Opens the store that a user named: a directory or a bucket. Imports only the library that it needs."""

import re
from pathlib import Path

from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.local import LocalStore
from checkpointing.stores.retrying import RetryLimits

_BUCKETS = ("s3", "az", "gs")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(url: str, *, base: Path | None = None, patience: RetryLimits | None = None) -> Store:
    """Returns the store at ``url`` without touching it. Relative directories start at ``base``. ``patience``
    is for a store that other machines serve.
    """
    scheme = _SCHEME.match(url)
    if scheme and scheme[1] in _BUCKETS:
        from checkpointing.stores.buckets import open_bucket

        return open_bucket(url, patience=patience)
    if scheme and scheme[1] != "file":
        raise StoreError(
            f"store: {scheme[1]}:// is no kind of store; expected a directory such as 'results', "
            "or s3://, az:// or gs:// with a bucket and a prefix"
        )
    if scheme and not url.startswith("file:///"):
        raise StoreError(f"store: {url!r} names a host; expected file:/// and an absolute path")
    try:
        path = Path(url.removeprefix("file://")).expanduser()
    except RuntimeError:
        raise StoreError(f"store: {url!r} names a user without a home; expected a directory") from None
    return LocalStore((base or Path.cwd()) / path)
