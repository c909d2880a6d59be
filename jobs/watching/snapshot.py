"""What is known of a run or a sweep at one moment, with how old it is."""

from dataclasses import dataclass
from typing import Any, Literal

from jobs.watching.following import Look
from jobs.watching.runs import RunRecords
from jobs.watching.sweeps import SweepRecords

# A driver tells something every 2 s, which is read every second.
OLD_S = 5.0
# A driver that has told nothing for so long may be gone.
Records = RunRecords | SweepRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """``status`` is small and read often. ``records`` is what the store holds, read less often."""

    kind: Literal["run", "sweep"]
    name: str
    store: str
    status: Look[dict[str, Any]]
    records: Look[Records]

    @property
    def stage(self) -> str | None:
        """What it is doing; None if nobody tells. Of a sweep that nobody measures its results tell."""
        stage = (self.status.value or {}).get("stage")
        records = self.records.value
        if stage is None and isinstance(records, SweepRecords):
            return "finished" if records.num_results >= records.num_runs > 0 else "not finished"
        return stage if isinstance(stage, str) else None

    @property
    def is_over(self) -> bool:
        return self.stage == "finished"


def problems(snapshot: Snapshot) -> list[str]:
    """Why the figures are old or missing, one sentence each; empty where all is well."""
    found = []
    status, records = snapshot.status, snapshot.records
    if status.problem:
        found.append(f"The store can't be read now: {status.problem}")
    elif status.silent_s > OLD_S:
        found.append(f"The store has not answered for {status.silent_s:.0f} s.")
    if found and status.age_s is not None:
        found.append(f"These figures are {status.age_s:.0f} s old.")
    if records.problem and records.problem != status.problem:
        found.append(f"What was recorded can't be read now: {records.problem}")
    return found


def as_data(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON has it. Ages are in seconds; None where nothing was read yet."""
    status, records = snapshot.status, snapshot.records
    return {
        "kind": snapshot.kind,
        "name": snapshot.name,
        "store": snapshot.store,
        "age_s": _rounded(status.age_s),
        "problems": problems(snapshot),
        "stage": snapshot.stage,
        "status": status.value,
        "recorded": records.value.as_data() if records.value else None,
        "recorded_age_s": _rounded(records.age_s),
    }


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 1)
