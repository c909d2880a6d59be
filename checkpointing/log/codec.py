"""Converts records of the log to text and back. Pure.

A record carries a digest of itself, so one flipped bit anywhere in it is noticed. Sizes, names and numbers
in a record are checked before they are used, and so is the type of each field.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.log import history
from checkpointing.log.bounded_json import parsed
from checkpointing.log.field_types import MOST_COUNT, check_types
from checkpointing.log.history import Entry, Generation, LogView
from checkpointing.stores.bounded import excess_of
from checkpointing.stores.contract import is_name

SCHEMA = 1
# What a signature adds to what ``seal`` made.
MAC_BYTES = 73
# What the id of a log adds to a manifest.
LOG_BYTES = 25
# Names of saves have room for a thousand times as many.
MOST_TERM = 10**9
MOST_NAMED_TERM = 1000 * MOST_TERM
_MOST_CHARS = 200
_HEAD = re.compile(
    rb'\{"schema":(?P<schema>[0-9]{1,9}),"sha256":"(?P<sha256>[0-9a-f]{64})",'
    rb'(?:"mac":"(?P<mac>[0-9a-f]{64})",)?"body":'
)

_KINDS: Mapping[str, type[Entry]] = {
    kind.__name__.lower(): kind
    for kind in (
        history.Lease,
        history.Fresh,
        history.Commit,
        history.Verified,
        history.Pin,
        history.Unpin,
        history.Quarantine,
        history.Tombstone,
        history.Load,
        history.Resumed,
        history.Stop,
        history.Stopped,
        history.Finish,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One slot of the log: the event and the view after it. ``id`` is drawn by the record's writer.

    ``log`` is the id of the log's first record, in a log that began with the store's key.
    """

    number: int
    id: str
    written_s: float
    entry: Entry
    view: LogView
    log: str | None = None


def encode(record: LogRecord) -> bytes:
    """Raises ``ValueError`` for what a reader takes for damage: all later views would repeat it."""
    check_types(record.view)
    _check(record)
    return seal(
        {
            "number": record.number,
            "id": record.id,
            "written_s": record.written_s,
            "kind": type(record.entry).__name__.lower(),
            "entry": record.entry,
            "view": record.view,
        }
        # Versions that do not know the field ignore it.
        | ({"log": record.log} if record.log else {})
    )


def decode(data: bytes, number: int) -> LogRecord:
    """Returns the record of slot ``number``; raises ``Corrupt`` if it is not exactly what was written
    there.
    """
    body = unseal(data)
    try:
        kind, entry = _KINDS[body["kind"]], dict(body["entry"])
        if kind is history.Commit:
            entry["generation"] = _generation(entry["generation"])
        if kind is history.Tombstone:
            entry["names"] = tuple(entry["names"])
        record = LogRecord(
            number=body["number"],
            id=body["id"],
            written_s=body["written_s"],
            entry=kind(**entry),
            view=_view(body["view"]),
            log=body.get("log"),
        )
        _check(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"record {number} of the log lacks or misnames something: {brief(error)}") from error
    if record.number != number:
        raise Corrupt(f"record {number} of the log is a copy of record {record.number}")
    return record


def _check(record: LogRecord) -> None:
    check_types(record)
    check_types(record.entry)
    if isinstance(record.entry, history.Commit):
        _check_generation(record.entry.generation)
    view = record.view
    counted = (view.term, view.life, view.life_term, view.num_lost, *view.loads.values())
    if terms := [one.term for one in view.generations if one.term >= MOST_NAMED_TERM]:
        raise ValueError(f"a generation of term {terms[0]} in record {record.number}")
    # A record adds one to each at most. So behind a number that is believed, none has no room.
    if max(counted) >= MOST_TERM + record.number:
        raise ValueError(f"{max(counted)} terms, lives, loads or lost records in record {record.number}")


def brief(error: Exception | str) -> str:
    """Returns the error's text, which may hold words of whoever wrote the bytes, cut if it
    is long.
    """
    text = str(error)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


def seal(body: Mapping[str, Any], schema: int = SCHEMA) -> bytes:
    """Encodes JSON that begins with the SHA-256 of its own body; numbers that are not finite are a
    ``ValueError``.
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_fields).encode()
    return b'{"schema":%d,"sha256":"%s","body":%s}' % (schema, _sha256(text), text)


def mac_of(data: bytes) -> str | None:
    """Returns the MAC that ``data`` carries, unchecked; None if there is none. 256 bytes of it suffice."""
    head = _HEAD.match(data)
    return head["mac"].decode() if head and head["mac"] else None


def signed(data: bytes, mac: str | None) -> bytes:
    """Returns what ``seal`` made with ``mac`` in its head, or without any."""
    head = _HEAD.match(data)
    if not head:
        raise Corrupt("its bytes are not those that its own digest names")
    carried = b'"mac":"%s",' % mac.encode() if mac else b""
    return b'{"schema":%s,"sha256":"%s",%s"body":%s' % (
        head["schema"], head["sha256"], carried, data[head.end() :],
    )  # fmt: skip


def schema_of(data: bytes) -> int | None:
    """Returns the schema that the head of ``data`` names; None without a head. 256 bytes of it suffice."""
    head = _HEAD.match(data)
    return int(head["schema"]) if head else None


def unseal(data: bytes, schema: int = SCHEMA) -> dict[str, Any]:
    """Checks the digest before the body is parsed, and returns the body."""
    text = sealed_text(data, schema)
    try:
        body = parsed(text)
    except ValueError as error:
        raise Corrupt(brief(error)) from error
    if not isinstance(body, dict):
        raise Corrupt("is JSON, but not an object")
    return body


def excess_in(data: bytes) -> str | None:
    """Says why ``unseal`` refuses what ``seal`` made for its extent; None if it does not."""
    head = _HEAD.match(data)
    return excess_of(data[head.end() : -1]) if head else None


def sealed_text(data: bytes, schema: int = SCHEMA) -> bytes:
    """Returns the body, not parsed; raises ``Corrupt`` if the digest is not its own."""
    head = _HEAD.match(data)
    text = data[head.end() : -1] if head else b""
    if not head or data[-1:] != b"}" or _sha256(text) != head["sha256"]:
        raise Corrupt("its bytes are not those that its own digest names")
    if int(head["schema"]) != schema:
        raise Corrupt(f"has schema {int(head['schema'])}; this version reads {schema}")
    return text


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_COUNT


def is_generation_name(value: object) -> bool:
    """Says whether ``value`` is a single plain folder name, which cannot lead out of its parent folder."""
    return isinstance(value, str) and "/" not in value and is_name(value)


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of one of our dataclasses. ``asdict`` takes ten times as long, and a view may hold
    thousands.
    """
    found = {name: getattr(value, name) for name in _names_of_fields(value.__class__)}
    # Older versions take these fields for damage, so they are written only if they are set.
    if isinstance(value, LogView) and value.stopped_step is None:
        del found["stopped_step"]
    if isinstance(value, history.Lease):
        found = {name: one for name, one in found.items() if one}
    return found


@cache
def _names_of_fields(kind: Any) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not JSON")
    return tuple(field.name for field in fields(kind))


def _view(body: dict[str, Any]) -> LogView:
    view = LogView(**{**body, "generations": tuple(map(_generation, body["generations"]))})
    check_types(view)
    return view


def _generation(body: dict[str, Any]) -> Generation:
    generation = Generation(**body)
    _check_generation(generation)
    return generation


def _check_generation(generation: Generation) -> None:
    if not is_generation_name(generation.name):
        raise ValueError(f"a generation {generation.name!r}")
    check_types(generation)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
