"""Signs the records of a log with the store's key, so that a writer of the store without it can't forge one.

The key is the content of the file that ``LONGHAUL_STORE_KEY_FILE`` names. A signature is a MAC over the run,
the number and the body of one record: a record is not valid for another run or number. A manifest is signed
too, for its run and generation, so that a save without a commit shows who made it.
"""

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Mapping
from io import FileIO
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.log.codec import mac_of, signed
from checkpointing.stores.contract import StoreError

VARIABLE = "LONGHAUL_STORE_KEY_FILE"
LEAST_BYTES, MOST_BYTES = 32, 4096
HOW = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


class StoreKeyError(StoreError):
    """The store's key is missing, wrong or badly kept; the message says what to do."""


class StoreKeyFileError(StoreKeyError):
    """The key can't be read here, where it may well be read on another node, or in a moment."""


class Signer:
    """Signs and checks the records of one run; without a key it signs nothing."""

    def __init__(self, run: str, key: bytes | None) -> None:
        self._run = run
        self._key = key

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def sign(self, number: int, data: bytes) -> bytes:
        return self._sign(("log", self._run, number), data)

    def sign_manifest(self, generation: str, data: bytes) -> bytes:
        return self._sign(("manifest", self._run, generation), data)

    def is_signed(self, number: int, data: bytes) -> bool:
        """Says whether ``data`` carries a signature. Raises ``Corrupt`` if it was not made with the key.

        Without a key any signature is taken for one, because nobody can tell.
        """
        mac = mac_of(data)
        if mac is None or self._key is None:
            return mac is not None
        if not self._is_right(mac, ("log", self._run, number), data):
            raise Corrupt(f"record {number} of the log is not signed with the store's key")
        return True

    def is_manifest_signed(self, generation: str, data: bytes) -> bool:
        """Says whether the manifest was signed with the key. Without a key the answer is no."""
        mac = mac_of(data)
        return mac is not None and self._is_right(mac, ("manifest", self._run, generation), data)

    def sign_fold(self, number: int, data: bytes) -> bytes:
        return self._sign(("fold", self._run, number), data)

    def is_fold_signed(self, number: int, data: bytes) -> bool:
        """Says whether the fold up to record ``number`` was signed with the key. Without a key the answer is
        no.
        """
        mac = mac_of(data)
        return mac is not None and self._is_right(mac, ("fold", self._run, number), data)

    def note_mac(self, term: int, body: Mapping[str, Any]) -> str | None:
        """Returns the MAC of what a driver notes of the attempt ``term``; None without a key."""
        if self._key is None:
            return None
        words = json.dumps([["note", self._run, term], body], sort_keys=True)
        return hmac.digest(self._key, words.encode(), hashlib.sha256).hex()

    def _sign(self, subject: tuple[str | int, ...], data: bytes) -> bytes:
        return data if self._key is None else signed(data, _mac(self._key, subject, data))

    def _is_right(self, mac: str, subject: tuple[str | int, ...], data: bytes) -> bool:
        return self._key is not None and hmac.compare_digest(mac, _mac(self._key, subject, data))


def _mac(key: bytes, subject: tuple[str | int, ...], data: bytes) -> str:
    # The digest in the head is that of the body, so the MAC holds both together.
    return hmac.digest(key, json.dumps(subject).encode() + b"\n" + signed(data, None), hashlib.sha256).hex()


def store_key() -> bytes | None:
    """Returns the store's key; None if no file is named. Raises ``StoreKeyFileError`` if it can't be used."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    try:
        # A pipe without a writer would block opening for ever.
        with FileIO(os.open(named, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            found = os.fstat(file.fileno())
            data = file.read(MOST_BYTES + 1) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise StoreKeyFileError(f"{VARIABLE}: {named}: {error.strerror}; {HOW}") from None
    if not stat.S_ISREG(found.st_mode):
        raise StoreKeyFileError(f"{VARIABLE}: {named} is no file; {HOW}")
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
        raise StoreKeyFileError(
            f"{VARIABLE}: {named} has mode {found.st_mode & 0o777:04o} and owner {found.st_uid}; "
            f"expected 0600 and user {os.geteuid()}. If others may have read it, {HOW}"
        )
    key = data.strip()
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        size = f"more than {MOST_BYTES}" if len(key) > MOST_BYTES else len(key)
        raise StoreKeyFileError(
            f"{VARIABLE}: {named} has {size} bytes; expected {LEAST_BYTES} to {MOST_BYTES}; {HOW}"
        )
    return key
