"""The newest check of an attempt that found no difference, kept in the run's store beside its notes.

Each attempt has one small object, which its rank 0 overwrites after each check. With the store's key it
carries a MAC, and one without it counts as none. It may be lost: then more is in doubt than need be.
"""

import hmac
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from checkpointing.log.signing import Signer, store_key
from checkpointing.log.trust import Trust
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, check_name
from jobs.training.ranks.typed_json import typed

_MOST_BYTES = 2**20
_MOST_STEP = 2**63
_SUBJECT = "clean check"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCheck:
    """Before step ``step`` of attempt ``term`` its ``nodes`` computed alike."""

    term: int
    step: int
    nodes: tuple[str, ...]


def leave_clean_check(store: Store, run: str, check: CleanCheck) -> None:
    signer = Signer(run, store_key())
    log = Trust(store, run, signer).log_id()
    body = {"schema": 1, "subject": _SUBJECT, **asdict(check)} | ({"log": log} if log else {})
    mac = signer.note_mac(check.term, body)
    store.put(_name(run, check.term), json.dumps({**body, "mac": mac} if mac else body).encode())


def read_clean_check(store: Store, run: str, term: int) -> CleanCheck | None:
    """None if the attempt left none, or none that can be believed. Raises ``StoreError`` for a store that is
    away.
    """
    try:
        body = json.loads(get_bounded(store, _name(run, term), most_bytes=_MOST_BYTES))
        return _check(body) if _is_believed(store, run, term, body) else None
    except (Missing, TooLarge, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _check(body: dict[str, Any]) -> CleanCheck:
    known = {field.name: body[field.name] for field in fields(CleanCheck)}
    check: CleanCheck = typed(CleanCheck, known)
    if not 0 <= check.step < _MOST_STEP:
        raise ValueError("a step that no run has")
    return check


def _is_believed(store: Store, run: str, term: int, body: dict[str, Any]) -> bool:
    signer = Signer(run, store_key())
    mac = body.pop("mac", None)
    if body["subject"] != _SUBJECT or body["term"] != term:
        return False
    ours = signer.note_mac(term, body)
    if ours is None:
        return True
    is_signed = isinstance(mac, str) and hmac.compare_digest(mac.encode(), ours.encode())
    return is_signed and Trust(store, run, signer).log_id() in (None, body.get("log"))


def _name(run: str, term: int) -> str:
    return check_name(f"runs/{run}/checks/{term:012d}.json")
