"""Stores a sweep's results: which runs have one, and how a new one is added.

Layout: ``sweeps/<sweep>/sweep.json`` and ``sweeps/<sweep>/runs/<run>/result.json``. A first attempt's result
is created only if none exists. A result that a later attempt replaces stays as ``attempts/NNN.json``. The
trace of a profiled run lies beside its result.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from checkpointing.stores.bounded import TooLarge, excess_of, get_bounded
from checkpointing.stores.contract import Conflict, Missing, Store
from jobs.run_progress.sweep_progress import SweepProgress
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Run
from jobs.sweeps.sessions import Sessions
from reporting.results.gathering import MOST_RESULT_BYTES
from reporting.results.records import RecordError, RunRecord, read_record
from reporting.results.redaction import redacted

SWEEP_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResults:
    """The contents of a sweep's folder, by run name. ``unreadable`` holds the reasons."""

    records: dict[str, RunRecord]
    unreadable: dict[str, str]


class Results:
    def __init__(self, store: Store, sweep: str) -> None:
        self._store = store
        self._sweep = sweep
        self._folder = f"sweeps/{sweep}"

    def load(self) -> StoredResults:
        records: dict[str, RunRecord] = {}
        unreadable: dict[str, str] = {}
        with ThreadPoolExecutor(max_workers=8) as pool:
            for run_name, found in pool.map(self._read, self._run_names()):
                match found:
                    case RunRecord():
                        records[run_name] = found
                    case RecordError():
                        unreadable[run_name] = str(found)
        return StoredResults(records=records, unreadable=unreadable)

    def save(self, run: Run, record: RunRecord) -> RunRecord:
        """Stores ``record`` and returns the record that now counts.

        If another process stored its record first, that one may count. A record with numbers is never
        replaced. A failure is replaced by a later attempt, or by another process's numbers. Of several ranks'
        failures in one attempt the first counts.
        """
        name = self._name(run.name)
        if record.attempt == 1:
            try:
                self._store.create(name, record.to_json())
            except Conflict:
                pass
            else:
                return record
        _, found = self._read(run.name)
        if isinstance(found, RunRecord):
            if found.status == "ok" or (found.attempt >= record.attempt and record.status != "ok"):
                return found
            record = replace(record, attempt=found.attempt + 1)
        self._keep_earlier_attempt(run, record.attempt - 1)
        self._store.put(name, record.to_json())
        return record

    def sessions(self, repeats: int) -> Sessions:
        """The sessions that ``sweep.json`` tells of, the last one with as many ``repeats``."""
        try:
            data = self._get(f"{self._folder}/sweep.json")
            found = None if excess_of(data) else json.loads(data)
        except (Missing, TooLarge, ValueError, RecursionError):
            found = None
        return Sessions.of(found.get("sessions") if isinstance(found, dict) else None, repeats)

    def describe(self, spec: SweepSpec, runs: Sequence[Run], sessions: Sessions | None = None) -> None:
        """Writes ``sweep.json``: the parsed spec without credentials, its sessions, the order of its runs."""
        document: dict[str, Any] = {
            "schema_version": SWEEP_SCHEMA_VERSION,
            "spec": redacted(spec.as_data()),
            **({"sessions": sessions.as_data()} if sessions and len(sessions.found) > 1 else {}),
            "runs": [run.name for run in runs],
        }
        text = json.dumps(document, separators=(",", ":"))
        self._store.put(f"{self._folder}/sweep.json", text.encode() + b"\n")

    def finished_at(self, run_name: str) -> str | None:
        """When the run was measured, in ISO 8601; None if its result can't be read."""
        _, found = self._read(run_name)
        return found.finished_at if isinstance(found, RunRecord) else None

    def progress(self, *, num_runs: int, expected_s: float | None) -> SweepProgress:
        return SweepProgress(self._store, self._sweep, num_runs=num_runs, expected_s=expected_s)

    def write_best(self, document: dict[str, Any]) -> None:
        """Writes ``best.json``, which an earlier search may have left."""
        self._store.put(f"{self._folder}/best.json", json.dumps(document, indent=1).encode() + b"\n")

    def write_file(self, run: Run, name: str, data: bytes) -> None:
        """Writes a file beside the result: a trace, or what full logging adds."""
        self._store.put(f"{self._folder}/runs/{run.name}/{name}", data)

    def _keep_earlier_attempt(self, run: Run, number: int) -> None:
        kept = f"{self._folder}/runs/{run.name}/attempts/{number:03}.json"
        try:
            self._store.create(kept, self._get(self._name(run.name)))
        except (Conflict, TooLarge):
            # The file exists if another process retried the same run, now or before it was killed.
            return

    def _get(self, name: str) -> bytes:
        return get_bounded(self._store, name, most_bytes=MOST_RESULT_BYTES)

    def _run_names(self) -> list[str]:
        prefix = f"{self._folder}/runs"
        names = (name.removeprefix(f"{prefix}/").split("/") for name in self._store.list(prefix))
        return sorted(parts[0] for parts in names if parts[1:] == ["result.json"])

    def _read(self, run_name: str) -> tuple[str, RunRecord | RecordError]:
        try:
            record = read_record(self._get(self._name(run_name)))
        except RecordError as error:
            return run_name, error
        except TooLarge as error:
            return run_name, RecordError(str(error))
        if not run_name.endswith(f"-r{record.repeat}-{record.cell_id[:8]}"):
            return run_name, RecordError(f"the result of another run ({record.run_id})")
        return run_name, record

    def _name(self, run_name: str) -> str:
        return f"{self._folder}/runs/{run_name}/result.json"
