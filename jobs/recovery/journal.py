"""How a run's attempts ended, kept in its store beside the log, so that later drivers know.

Each attempt has one small object, which its driver writes and nobody deletes. An attempt without an object
died with its driver. The log does not refer to these objects, so a reader that knows only logs can still read
the run. With the store's key each carries a MAC, and one without it counts as none: a note says what a run
leaves out.

``Journal`` belongs to one driver: what the driver knows of earlier attempts, and its notes on its own.
"""

import hmac
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from checkpointing.generations.choice import Spoilt
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import LogView
from checkpointing.log.signing import Signer, store_key
from checkpointing.log.trust import Trust
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, check_name
from checkpointing.stores.transfers import within
from jobs.recovery.policy import FailedAttempt
from jobs.run_progress.status_file import read_status_file
from jobs.training.ranks.typed_json import typed
from jobs.training.task.measurement import BadLoss
from jobs.training.task.skipping import RecordedStretches, Skips, merged
from jobs.training.task.task import Task

How = Literal["failed", "given up", "done", "interrupted"]

# A policy looks no further back, and reading the notes must not take long.
_MOST_READ = 100
_MOST_NOTE_BYTES = 2**20
# Numbers beyond these are no floats, and no numbers of samples.
_MOST, _MOST_INT = 1e300, 2**63
# A store that is away may block a writer for many minutes.
NOTE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote:
    """How one attempt ended. ``given_up`` is the reason if the run was given up; ``log_tail`` is the failed
    rank's last log lines.

    A failed attempt has an ``ending``, unless its driver died before it could write one. ``is_branch``: the
    user named the generation to begin from, so earlier attempts no longer belong to the run's past.

    ``skips`` are all samples that the run leaves out from then on, and ``skipped_in`` is as a task's.
    ``spoilt`` says what the run does not resume from, see ``checkpointing.generations.choice``.
    """

    term: int
    how: How
    ending: FailedAttempt | None = None
    log_tail: tuple[str, ...] = ()
    given_up: str | None = None
    skips: Skips = ()
    skipped_in: RecordedStretches = ()
    spoilt: Spoilt = ()
    is_branch: bool = False


@dataclass(slots=True, kw_only=True)
class Journal:
    """What one driver knows of a run's failed attempts. A note that cannot be written within ``timeout_s`` is
    dropped.

    ``history`` has the failed attempts of the run's life ``life``. ``skips`` and ``spoilt`` are what the run
    leaves out. ``branch_term`` is the term of the attempt that ``is_branch``.
    """

    repository: Repository
    life: int
    history: list[FailedAttempt]
    skips: Skips = ()
    skipped_in: RecordedStretches = ()
    spoilt: Spoilt = ()
    branch_term: int = 0
    timeout_s: float = NOTE_TIMEOUT_S
    has_begun: bool = field(default=False, init=False)

    def begins(self, task: Task) -> Task:
        """The task with what the run leaves out; a run that begins a new life leaves out nothing."""
        if self.repository.view.life != self.life:
            self.life, self.history = self.repository.view.life, []
            self.skips, self.skipped_in, self.spoilt = (), (), ()
        elif not self.has_begun and task.resume != "latest" and self.history:
            # A generation that the user asked for begins a branch, and the note tells later drivers so.
            self.history, self.branch_term = [], task.term
            self.note(task, "failed")
        self.has_begun = True
        return replace(task, skips=self.skips, skipped_in=self.skipped_in, spoilt=self.spoilt)

    def leaves_out(self, bad: BadLoss | None, *, term: int, good_step: int) -> None:
        """Leaves out the samples of ``bad`` from now on, and what ``term`` saved after ``good_step``."""
        if bad is not None:
            self.skips, self.skipped_in = merged([*self.skips, bad.samples]), bad.stretches
        self.spoilt = (*self.spoilt, (term, good_step))

    def note(
        self,
        task: Task | None,
        how: How,
        ending: FailedAttempt | None = None,
        log_tail: tuple[str, ...] = (),
        given_up: str | None = None,
    ) -> None:
        """Writes an attempt's note. An attempt without a lease gets none: it has no term to name the note."""
        if task is None:
            return
        note = AttemptNote(
            term=task.term,
            how=how,
            ending=ending,
            log_tail=log_tail,
            given_up=given_up,
            skips=self.skips,
            skipped_in=self.skipped_in,
            spoilt=self.spoilt,
            is_branch=task.term == self.branch_term,
        )
        with suppress(StoreError, TimeoutError):
            within(self.timeout_s, lambda: leave_note(self.repository.store, self.repository.run, note))


def open_journal(repository: Repository, *, timeout_s: float = NOTE_TIMEOUT_S) -> Journal:
    """The journal as earlier drivers left it."""
    view = repository.refresh()
    newest = read_newest(repository.store, repository.run, view)
    return Journal(
        repository=repository,
        life=view.life,
        history=read_failed_attempts(repository.store, repository.run, view),
        skips=newest.skips if newest else (),
        skipped_in=newest.skipped_in if newest else (),
        spoilt=newest.spoilt if newest else (),
        timeout_s=timeout_s,
    )


def leave_note(store: Store, run: str, note: AttemptNote) -> None:
    log = _trust(store, run).log_id()
    body = {"schema": 1, **asdict(note)} | ({"log": log} if log else {})
    mac = Signer(run, store_key()).note_mac(note.term, body)
    told = {**body, "mac": mac} if mac else body
    store.put(_name(run, note.term), json.dumps(told, indent=1).encode())


def read_failed_attempts(store: Store, run: str, view: LogView) -> list[FailedAttempt]:
    """The failed attempts of the run's present life, in order, since a user last started it by hand.

    That is since an attempt was given up, ended well or was interrupted, or since the user named a generation
    to resume from. Of an attempt that died with its driver, only what it saved is known, and of the newest
    one the group, if its driver's last status says so.
    """
    endings: list[FailedAttempt] = []
    trust = _trust(store, run)
    for term in _terms(view):
        note = read_note(store, run, term, trust)
        if note is not None and note.how != "failed":
            break
        endings.append(note.ending if note and note.ending else _unreported_failure(store, run, term, view))
        if note is not None and note.is_branch:
            break
    return endings[::-1]


def read_newest(store: Store, run: str, view: LogView) -> AttemptNote | None:
    """The note of the newest attempt in the run's present life; its skip list is authoritative."""
    trust = _trust(store, run)
    return next((note for term in _terms(view) if (note := read_note(store, run, term, trust))), None)


def given_up(store: Store, run: str, view: LogView) -> AttemptNote | None:
    """The newest attempt's note, if it says that the run was given up."""
    note = read_note(store, run, view.term)
    return note if note is not None and note.how == "given up" else None


def read_note(store: Store, run: str, term: int, trust: Trust | None = None) -> AttemptNote | None:
    """The note of one attempt; None if none can be read, and then nobody knows how the attempt ended.

    Who reads many gives the same ``trust``, so that the log's id is read once.
    """
    try:
        data = get_bounded(store, _name(run, term), most_bytes=_MOST_NOTE_BYTES)
        body = json.loads(data)
        return _note(body) if _is_believed(trust or _trust(store, run), run, term, body) else None
    except (
        Missing,
        TooLarge,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
    ):
        return None


def _is_believed(trust: Trust, run: str, term: int, body: dict[str, Any]) -> bool:
    mac = body.pop("mac", None)
    ours = Signer(run, store_key()).note_mac(term, body)
    if ours is None:
        return True
    is_signed = isinstance(mac, str) and hmac.compare_digest(mac.encode(), ours.encode())
    return is_signed and trust.log_id() in (None, body.get("log"))


def _trust(store: Store, run: str) -> Trust:
    return Trust(store, run, Signer(run, store_key()))


def _terms(view: LogView) -> range:
    """The terms of the run's present life, newest first."""
    first = max(1, view.life_term, view.term - _MOST_READ + 1)
    return range(view.term, first - 1, -1)


def _unreported_failure(store: Store, run: str, term: int, view: LogView) -> FailedAttempt:
    told = read_status_file(store, run) if term == view.term else {}
    durable = [one for one in of_this_life(view) if one.term <= term and one.quarantined is None]
    newest = latest(durable)
    return FailedAttempt(
        term=term,
        cause="driver died",
        reason="the driver ended without a word of it",
        ended_s=max((one.committed_s for one in durable), default=0.0),
        step=max((one.step for one in durable if one.term == term), default=0),
        durable_step=newest.step if newest else 0,
        group=told.get("group") or "" if told.get("attempt") == term else "",
    )


def _note(body: Mapping[str, Any]) -> AttemptNote:
    """The note in ``body``, each field of its type: whoever writes to the store may have written it. Fields
    that a later version added are ignored.
    """
    ending = _known(FailedAttempt, body["ending"]) if body["ending"] else None
    note: AttemptNote = typed(AttemptNote, _known(AttemptNote, body) | {"ending": ending})
    if note.ending and not abs(note.ending.ended_s) < _MOST:
        raise ValueError("an attempt that ended at no time")
    if any(abs(number) >= _MOST_INT for pair in (*note.skips, *note.spoilt) for number in pair):
        raise ValueError("samples or steps that no run has")
    return note


def _known(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: body[field.name] for field in fields(kind) if field.name in body}


def _name(run: str, term: int) -> str:
    return check_name(f"runs/{run}/attempts/{term:012d}.json")
