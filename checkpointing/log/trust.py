"""Decides which records of a log are believed: neither a missing nor a forged signature has its way.

A log is *signed* from the first lease, or first record, that somebody with the key wrote:

- From there on a record without our signature counts as damaged, for whoever has the key.
- A signature that our key did not make is damage too. If nothing else is in the log, the key is the wrong
  one, or somebody began the log in our name.
- Records before it may be anybody's. So no start with the key goes on from a log that no key signed, unless
  the user names the checkpoint to go on from, or begins anew.
- A log that begins with the key has an id: that of its first record, which all later records and manifests
  repeat. One of another log of the same run's name and the same key is damage too. A copy of a whole log
  counts as what it is a copy of. Logs of earlier versions have no id, and neither has one whose first record
  is lost or was not signed.
- Without the key nobody can tell a signature from a forged one, so all records are believed. Who has no key
  appends nothing behind a lease or first record with a signature, as his records would count as damaged.
"""

from contextlib import suppress

from checkpointing.errors import Corrupt
from checkpointing.log.codec import LogRecord, decode, mac_of, sealed_text
from checkpointing.log.history import Entry, Lease
from checkpointing.log.signing import HOW, VARIABLE, Signer, StoreKeyError
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, check_name

# A view of a hundred thousand generations has half of them.
MOST_RECORD_BYTES = 64 * 2**20
_HEAD_BYTES = 256


class Trust:
    """What one reader of a run's log believes. It reads earlier records where it must, and each only once."""

    def __init__(self, store: Store, run: str, signer: Signer) -> None:
        self._store = store
        self._run = run
        self._signer = signer
        self._signed_at = 0  # the number of a record from which on the log is signed, 0 if none is known
        self._unsigned_to = 0  # up to here the log is not signed
        self._marked_to = 0  # the newest record that was read with a signature, without a key
        self._num_believed = 0
        self._num_refused = 0
        self._has_read_first = False
        self._id: str | None = None
        self._newest_named: str | None = None  # the log that the newest believed record names

    def believed(self, data: bytes, number: int) -> LogRecord:
        """Decodes record ``number``. Raises ``Corrupt`` if it is unsigned in a signed log, signed with
        another key, or of another log.
        """
        # A large record takes long to decode, and anybody may have written it: its signature comes first.
        sealed_text(data)
        try:
            has_signature = self._signer.is_signed(number, data)
        except Corrupt:
            self._num_refused += 1
            raise
        if not self._signer.has_key:
            self._marked_to = max(self._marked_to, number if has_signature else 0)
        elif has_signature:
            self._signed_at = self._signed_at or number
        elif self.is_signed(before=number):
            raise Corrupt(f"record {number} of the log is not signed, and one before it is")
        record = decode(data, number)
        if has_signature and number > 1 and self.log_id() not in (None, record.log):
            raise Corrupt(f"record {number} is of another log of this name")
        self._newest_named = record.log
        self._num_believed += 1
        return record

    def log_id(self) -> str | None:
        """Returns the id of the log; None without the key, or if the log has none."""
        if self._signer.has_key and not self._has_read_first:
            with suppress(Corrupt, TooLarge):
                try:
                    data = get_bounded(self._store, slot_name(self._run, 1), most_bytes=MOST_RECORD_BYTES)
                except Missing:
                    return None
                self._id = decode(data, 1).log if self._signer.is_signed(1, data) else None
            self._has_read_first = True
        return self._id

    def id_to_write(self, number: int, record_id: str) -> str | None:
        """Returns the log's id for record ``number``; where the first record is lost, the one that the newest
        names.
        """
        if number == 1:
            return record_id if self._signer.has_key else None
        return self.log_id() or self._newest_named

    def is_signed(self, *, before: int) -> bool:
        """Says whether the log is signed when record ``before`` is written. Reads the heads of earlier
        records, the first of all and then the newest first.
        """
        if 0 < self._signed_at < before:
            return True
        first = (1,) if self._unsigned_to < 1 < before else ()
        for number in (*first, *range(before - 1, max(self._unsigned_to, 1), -1)):
            with suppress(Corrupt, Missing, TooLarge):
                if self._begins_a_signed_log(number):
                    self._signed_at = number
                    return True
        self._unsigned_to = max(self._unsigned_to, before - 1)
        return False

    def is_signed_with_our_key(self, *, before: int) -> bool:
        return self._signer.has_key and self.is_signed(before=before)

    def begins_to_sign(self, *, before: int) -> bool:
        """Says whether a lease as record ``before`` would be the first that is signed."""
        return self._signer.has_key and not self.is_signed(before=before)

    def may_be_anybodys(self, number: int) -> bool:
        """Says whether there is a key, and record ``number`` is not signed with it."""
        return self._signer.has_key and not self._begins_a_signed_log(number)

    def sign(self, number: int, entry: Entry, data: bytes) -> bytes:
        """Signs with the key, if there is one: a lease or first record always, others in a signed log alone.

        A tool that signed its record in a log of a run without the key would make damage of all that the
        run appends from there on.
        """
        is_first = number == 1 or isinstance(entry, Lease)
        if not self._signer.has_key or not (is_first or self.is_signed(before=number)):
            return data
        return self._signer.sign(number, data)

    def note_own(self, record: LogRecord, data: bytes) -> None:
        """Notes that ``data`` is what this process wrote as ``record``."""
        if mac_of(data) is not None:
            self._signed_at = self._signed_at or record.number
        if record.number == 1:
            self._has_read_first, self._id = True, record.log

    def refuse_another_key(self) -> None:
        """Raises ``StoreKeyError`` if all that was read is signed with another key."""
        if self._num_refused and not self._num_believed:
            raise StoreKeyError(
                f"{self._place()}: no record was signed with the key in {VARIABLE}; "
                "name the file that its runs were started with; if none of that name ever began, somebody "
                "planted the log: give the run another name"
            )

    def is_anybodys(self, *, before: int) -> bool:
        """Says whether there is a key, and records are believed of which it signed none."""
        return self._signer.has_key and self._num_believed > 0 and not self.is_signed(before=before)

    def refuse_what_nobody_signed(self, *, before: int) -> None:
        """Raises ``StoreKeyError`` if there is a key, and records are believed of which it signed none.

        Damaged records alone are stepped over: nothing follows from them.
        """
        if not self.is_anybodys(before=before):
            return
        raise StoreKeyError(
            f"{self._place()}: none of its records is signed with the key in {VARIABLE}, so whoever may "
            "write to the store can have made them; if the run is yours and began without the key, name the "
            "checkpoint to go on from with --resume NAME (`longhaul checkpoints list` has them), or begin "
            "anew beside them with --fresh; otherwise give the run another name"
        )

    def refuse_to_append_unsigned(self) -> None:
        """Raises ``StoreKeyError`` if the log seems to be signed, and there is no key."""
        if self._signer.has_key or not self._marked_to or not self.is_signed(before=self._marked_to + 1):
            return
        raise StoreKeyError(
            f"{self._place()}: its records are signed from record {self._signed_at} on, and this process has "
            f"no key; set {VARIABLE} to the key's file, here and for Ray on every node; if none of you ever "
            f"had one, somebody forged that record, and with a key the run goes on: {HOW}"
        )

    def _begins_a_signed_log(self, number: int) -> bool:
        """Says whether the record has our key's signature; without a key, whether it is a lease or the first
        record, and has any.
        """
        name = slot_name(self._run, number)
        head = memoryview(bytearray(_HEAD_BYTES))
        count = self._store.get_range(name, 0, head)
        if mac_of(bytes(head[:count])) is None:
            return False
        data = get_bounded(self._store, name, most_bytes=MOST_RECORD_BYTES)
        if self._signer.has_key:
            return self._signer.is_signed(number, data)
        return number == 1 or isinstance(decode(data, number).entry, Lease)

    def _place(self) -> str:
        return f"{self._store.url}: {log_folder(self._run)}"


def log_folder(run: str) -> str:
    return check_name(f"runs/{run}/log")


def slot_name(run: str, number: int) -> str:
    return f"{log_folder(run)}/{number:012d}.json"
