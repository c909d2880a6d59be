"""Records of the log as text and back. Pure.

A record carries a digest of itself, so one flipped bit anywhere in it is noticed. What a record says of
sizes, names and numbers is checked before it is believed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from checkpointing import history
from checkpointing.errors import Corrupt
from checkpointing.history import Entry, Generation, View

SCHEMA = 1

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
        history.Finish,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One slot of the log: what happened, and the view after it. ``id`` is its writer's own."""

    number: int
    id: str
    written_s: float
    entry: Entry
    view: View


def encode(record: Record) -> bytes:
    return seal(
        {
            "number": record.number,
            "id": record.id,
            "written_s": record.written_s,
            "kind": type(record.entry).__name__.lower(),
            "entry": asdict(record.entry),
            "view": asdict(record.view),
        }
    )


def decode(data: bytes, number: int) -> Record:
    """The record of slot ``number``; raises ``Corrupt`` if it is not exactly what was written there."""
    body = unseal(data)
    try:
        kind, entry = _KINDS[body["kind"]], dict(body["entry"])
        if kind is history.Commit:
            entry["generation"] = _generation(entry["generation"])
        if kind is history.Tombstone:
            entry["names"] = tuple(entry["names"])
        record = Record(
            number=body["number"],
            id=body["id"],
            written_s=body["written_s"],
            entry=kind(**entry),
            view=_view(body["view"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"record {number} of the log lacks or misnames something: {error}") from error
    if record.number != number:
        raise Corrupt(f"record {number} of the log is a copy of record {record.number}")
    return record


def seal(body: Mapping[str, Any]) -> bytes:
    """JSON that knows its own SHA-256."""
    text = _canonical(body)
    return _canonical({"schema": SCHEMA, "sha256": _sha256(text), "body": body})


def unseal(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data)
        schema, digest, body = whole["schema"], whole["sha256"], whole["body"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"is not JSON with schema, sha256 and body: {error}") from error
    if not isinstance(body, dict) or _sha256(_canonical(body)) != digest or data != seal(body):
        raise Corrupt("its bytes are not those that its own digest names")
    if schema != SCHEMA:
        raise Corrupt(f"has schema {schema}; this version reads {SCHEMA}")
    return body


def _view(body: dict[str, Any]) -> View:
    return View(**{**body, "generations": tuple(map(_generation, body["generations"]))})


def _generation(body: dict[str, Any]) -> Generation:
    return Generation(**body)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
