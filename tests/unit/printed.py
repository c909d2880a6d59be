"""What ``--json`` prints, as types. The JSON Schemas in ``docs/schemas`` are made of them.

What a command prints of a dataclass is that dataclass. What it puts together itself is a class here.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import Field, TypeAdapter

from checkpointing.generations.adoption import Adoption
from checkpointing.generations.audit import AuditFinding
from checkpointing.generations.garbage import GarbageGeneration
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Generation
from cluster.nodes import SeenNode
from cluster.promised_vs_live import NodeFinding
from jobs.checkpoints.details import GenerationDetails
from jobs.checkpoints.export import Exported
from jobs.checkpoints.verification import ShareVerdict
from jobs.dataset.facts import RunFacts, SourceFacts, StepFacts, TokenFacts
from jobs.dataset.verifying import Verified as VerifiedData
from jobs.doctor.examination import Examination, Finding, Forecast
from jobs.doctor.security.exposure import Exposure
from jobs.listing.reading import Listed
from jobs.reports.gate import Gate
from jobs.runs.stop import StopOutcome
from jobs.slurm.command import Written
from jobs.sweeps.search.decision import Cost
from reporting.analysis.comparing import Unmatched
from reporting.analysis.findings import CellCost, Comparison, Findings
from reporting.importers.reading import ReadSource
from reporting.importers.sources import UnreadSource
from reporting.results.publishing import Pulled
from reporting.results.records import RunRecord
from reporting.results.skipped import Skipped
from tests.conftest import strict_json
from tests.house import ROOT

FOLDER = ROOT / "docs" / "schemas"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LEFT_OUT = ("title", "default", "maybe")
_MAYBE = Field(json_schema_extra={"maybe": True})


@dataclass(frozen=True, kw_only=True)
class Incident:
    at_s: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Restart:
    attempt: int
    at_s: float
    cause: str
    text: str
    from_step: int
    num_redone: int
    phases_s: Mapping[str, float]
    device_s: float


@dataclass(frozen=True, kw_only=True)
class Recorded:
    num_steps: int
    num_superseded: int
    tokens_per_s: float | None
    simulated: bool
    attention_kernel: str | None
    source_losses: Mapping[str, float]
    wall_s: float
    goodput: float | None
    phases_s: Mapping[str, float]
    incidents: list[Incident]
    num_restarts: int
    restarts: list[Restart]
    lost_device_s: float
    num_redone: int


@dataclass(frozen=True, kw_only=True)
class RunState:
    run: str
    step: int
    num_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    data_wait_share: float | None
    checked_step: int | None
    finished: bool
    stage: str | None
    why: str | None
    told_age_s: float | None
    retry_in_s: float | None
    eta_s: float | None
    newest_generation: str | None
    newest_durable_age_s: float | None
    steps_at_risk: int
    num_generations: int
    attempts: int
    group: str | None
    stop_asked: bool
    stopped_step: int | None


@dataclass(frozen=True, kw_only=True)
class Status(RunState):
    recorded: Recorded | None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One save at one ``place``, "disk" or "store". ``problem`` says why it failed, ``finding`` what is wrong
    although it did not fail.
    """

    step: int
    generation: str
    place: str
    num_bytes: int
    blocked_s: float
    took_s: float
    problem: str | None
    finding: Annotated[str | None, _MAYBE]


@dataclass(frozen=True, kw_only=True)
class _OfThisStart:
    resumed_from: str | None
    resumed_step: int | None
    why: list[str]
    problem: str | None
    stopped: str | None
    saves: list[Saved]
    ray_checkpoint: str | None


@dataclass(frozen=True, kw_only=True)
class Trained(_OfThisStart, Status):
    """The run has trained. ``why`` says how its checkpoint was chosen."""

    why: list[str]


@dataclass(frozen=True, kw_only=True)
class StoppedBefore(_OfThisStart):
    """The run was stopped before its first attempt."""

    run: str


@dataclass(frozen=True, kw_only=True)
class Size:
    group: str
    world_size: int
    placement: str | None
    refused: str | None
    predicted_memory_bytes: int | None
    memory_limit_bytes: int | None
    predicted_step_s: float | None


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    schema_version: Literal[1]
    run: str
    store: str
    group: str
    num_steps: int
    begins: str
    begins_at_step: int
    finished_step: int | None
    sizes: list[Size]
    checkpoint_bytes: int
    most_checkpoints: int | None
    local_folder: str | None
    local_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class SweepRows:
    runs: list[RunRecord]


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """Either ``placement`` or ``refused`` is there."""

    cell_id: str
    model: str
    strategy: str
    world_size: int
    seq_len: int
    micro_batch: int
    grad_accum: int
    micro_batch_asked: Annotated[Literal["max"], _MAYBE]
    precision: str
    activation_checkpointing: str
    cross_entropy: str
    compile: str
    attention: str
    fp8: str
    offload: str
    shard_within: int | None
    deterministic: bool
    group: str
    repeats: int
    parameters: int
    flops_per_token: float
    recomputed_flops_per_token: float
    predicted_memory_bytes: int
    predicted_host_memory_bytes: int | None
    predicted_run_s: float | None
    placement: Annotated[str, _MAYBE]
    refused: Annotated[str, _MAYBE]


@dataclass(frozen=True, kw_only=True)
class Round:
    num_cells: int
    steps: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class PlannedQuestion:
    asked: Mapping[str, str | int | None]
    rounds: list[Round]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """``questions`` are there with ``--best``."""

    cells: list[PlannedCell]
    questions: Annotated[list[PlannedQuestion], _MAYBE]


@dataclass(frozen=True, kw_only=True)
class RankedCell:
    """From ``ratio`` on: this cell beside the best one, which does not have these keys."""

    cell_id: str
    settings: Mapping[str, str | int | None]
    micro_batch: int
    grad_accum: int
    tokens_per_sec: float
    tokens_per_sec_low: float | None
    tokens_per_sec_high: float | None
    run_ids: list[str]
    ratio: Annotated[float, _MAYBE]
    ratio_low: Annotated[float | None, _MAYBE]
    ratio_high: Annotated[float | None, _MAYBE]
    verdict: Annotated[str, _MAYBE]
    is_tied: Annotated[bool, _MAYBE]


@dataclass(frozen=True, kw_only=True)
class FailedCell:
    cell_id: str
    run_id: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    asked: Mapping[str, str | int | None]
    sequences_per_step: int | None
    num_candidates: int
    is_decided: bool
    best: RankedCell | None
    others: list[RankedCell]
    failed: list[FailedCell]
    excluded: list[str]


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    schema_version: int
    sweep: str
    over: list[str]
    questions: list[Answer]
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class ListedGeneration(Generation):
    age_s: float
    where: list[str]
    kept_for: list[str]


@dataclass(frozen=True, kw_only=True)
class CheckpointList:
    run: str
    store: str
    generations: list[ListedGeneration]
    latest: str | None
    backup: str | None
    best: str | None
    num_bytes: int
    retention: Retention


@dataclass(frozen=True, kw_only=True)
class Verified:
    run: str
    generations: list[ShareVerdict]


@dataclass(frozen=True, kw_only=True)
class Pinned:
    name: str
    is_pinned: bool


@dataclass(frozen=True, kw_only=True)
class UnfinishedUpload:
    name: str
    started: str


@dataclass(frozen=True, kw_only=True)
class Garbage:
    num_objects: int
    num_bytes: int
    is_deleted: bool
    generations: list[GarbageGeneration]
    uploads: list[UnfinishedUpload]
    not_deleted: Annotated[Mapping[str, str], _MAYBE]
    spared: list[str]
    unnamed: list[GarbageGeneration]
    are_unnamed_deleted: bool


@dataclass(frozen=True, kw_only=True)
class AuditedPlace(AuditFinding):
    is_mended: bool


@dataclass(frozen=True, kw_only=True)
class Audit:
    run: str
    findings: list[AuditedPlace]


@dataclass(frozen=True, kw_only=True)
class AdoptedGenerations:
    run: str
    generations: list[Adoption]


@dataclass(frozen=True, kw_only=True)
class ExportedModel(Exported):
    name: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Report(Findings):
    """What ``findings.json`` has, and where the report is."""

    place: str


@dataclass(frozen=True, kw_only=True)
class PulledReport(Pulled):
    """One line for each report."""

    report: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class ImportWarning:
    text: str
    num_runs: int


@dataclass(frozen=True, kw_only=True)
class Imported:
    stored: str | None
    num_runs: int
    num_new: int
    read: list[ReadSource]
    unread: list[UnreadSource]
    warnings: list[ImportWarning]


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    target: str
    num_runs: int


@dataclass(frozen=True, kw_only=True)
class ComparedCell(Comparison):
    gate: Gate


@dataclass(frozen=True, kw_only=True)
class Compared:
    schema_version: int
    verdict: Gate
    exit_code: int
    baseline: ComparedSide
    other: ComparedSide
    threshold: float
    simulated_groups: list[str]
    summary: str
    unread: list[Skipped]
    comparisons: list[ComparedCell]
    only_in_baseline: list[Unmatched]
    only_in_other: list[Unmatched]


@dataclass(frozen=True, kw_only=True)
class CellOption(CellCost):
    fit: Literal["yes", "not sure", "no"]
    micro_batch: int | None
    flags: list[str]


@dataclass(frozen=True, kw_only=True)
class Choice:
    schema_version: int
    answer: str
    verdict: Literal["yes", "not sure", "no"]
    exit_code: int
    tokens: float | None
    currency: str | None
    budget: float | None
    deadline_days: float | None
    goodputs: Mapping[str, float]
    options: list[CellOption]


@dataclass(frozen=True, kw_only=True)
class ShownGroup:
    group: str
    nodes: list[SeenNode]


@dataclass(frozen=True, kw_only=True)
class ShownCluster:
    address: str
    groups: list[ShownGroup]
    findings: list[NodeFinding]


@dataclass(frozen=True, kw_only=True)
class ForecastWithTotal(Forecast):
    store_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Examined(Examination):
    verdict: str
    exit_code: int
    findings: list[Finding]
    forecast: ForecastWithTotal | None


@dataclass(frozen=True, kw_only=True)
class SeenFromOutside:
    findings: list[Finding]
    exit_code: int
    seen: Exposure


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """``url`` is null if no document was held out."""

    url: str | None
    num_documents: int
    num_tokens: int
    num_special_tokens: int


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The last four are there if conversations were packed. ``held_out`` is null without --hold-out; other
    numbers are those of the rest.
    """

    url: str
    num_documents: int
    num_tokens: int
    num_shards: int
    dtype: str
    tokenizer: str
    tokenizer_digest: str
    vocab_size: int
    digest: str
    num_special_tokens: int
    held_out: HeldOut | None
    num_files: dict[str, int]
    num_ignored_files: int
    seq_len: Annotated[int, _MAYBE]
    num_trained_tokens: Annotated[int, _MAYBE]
    num_cut: Annotated[int, _MAYBE]
    num_left_out: Annotated[int, _MAYBE]


@dataclass(frozen=True, kw_only=True)
class SeenData:
    """``tokens`` is null of synthetic samples, and of a mixture, which has ``sources``. ``run`` and ``step``
    are there with a spec; ``verified`` with --verify. The tokens' ``documents`` are there if all tokens were
    read, as with --documents; else ``unread`` says why they were not.
    """

    tokens: TokenFacts | None
    run: RunFacts | None
    step: StepFacts | None
    verified: VerifiedData | None
    sources: list[SourceFacts] | None


@dataclass(frozen=True, kw_only=True)
class ListedRuns(Listed):
    schema_version: Literal[1]
    store: str


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The numbers are there while a start of the sweep tells them."""

    stage: Literal["measuring", "silent"] | None
    told_age_s: float | None
    running: Annotated[list[str], _MAYBE]
    num_done: Annotated[int, _MAYBE]
    num_failed: Annotated[int, _MAYBE]
    num_runs: Annotated[int, _MAYBE]
    elapsed_s: Annotated[float, _MAYBE]
    remaining_s: Annotated[float, _MAYBE]
    told_s: Annotated[float, _MAYBE]


@dataclass(frozen=True, kw_only=True)
class WatchedCell:
    cell: str
    statuses: Mapping[str, int]
    tokens_per_sec: list[float]
    simulated: bool
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    num_runs: int
    num_results: int
    num_failed: int
    cells: list[WatchedCell]


@dataclass(frozen=True, kw_only=True)
class _Watched:
    name: str
    store: str
    age_s: float | None
    problems: list[str]
    stage: str | None
    recorded_age_s: float | None


@dataclass(frozen=True, kw_only=True)
class WatchedRun(_Watched):
    kind: Literal["run"]
    status: RunState | None
    recorded: Recorded | None


@dataclass(frozen=True, kw_only=True)
class WatchedSweep(_Watched):
    kind: Literal["sweep"]
    status: SweepStatus | None
    recorded: SweepResults | None


# Each file, with the command that prints it and its type.
PRINTED: Mapping[str, tuple[str, Any]] = {
    "sweep": ("longhaul sweep SPEC --json", SweepRows),
    "sweep_dry_run": ("longhaul sweep SPEC --dry-run --json", SweepPlan),
    "sweep_best": ("longhaul sweep SPEC --best --json", BestSettings),
    "train": ("longhaul train SPEC --json", Trained | Status | StoppedBefore),
    "train_dry_run": ("longhaul train SPEC --dry-run --json", TrainPlan),
    "status": ("longhaul status RUN --json", Status),
    "stop": ("longhaul stop RUN --json", StopOutcome),
    "watch": ("longhaul watch NAME --json", WatchedRun | WatchedSweep),
    "runs": ("longhaul runs --json", ListedRuns),
    "report": ("longhaul report --json", Report),
    "pull": ("longhaul pull STORE FOLDER --json", PulledReport),
    "import": ("longhaul import PATH --json", Imported),
    "compare": ("longhaul compare A B --json", Compared),
    "compare_choose": ("longhaul compare A --budget MONEY --json, and --deadline DAYS", Choice),
    "checkpoints_list": ("longhaul checkpoints list --json", CheckpointList),
    "checkpoints_show": ("longhaul checkpoints show NAME --json", GenerationDetails),
    "checkpoints_verify": ("longhaul checkpoints verify --json", Verified),
    "checkpoints_pin": ("longhaul checkpoints pin NAME --json, and unpin", Pinned),
    "checkpoints_gc": ("longhaul checkpoints gc --json", Garbage),
    "checkpoints_fsck": ("longhaul checkpoints fsck --json", Audit),
    "checkpoints_adopt": ("longhaul checkpoints adopt --json, and fsck --rebuild", AdoptedGenerations),
    "checkpoints_export": ("longhaul checkpoints export NAME --to DIR --json", ExportedModel),
    "cluster_show": ("longhaul cluster show --json", ShownCluster),
    "doctor": ("longhaul doctor --json", Examined),
    "doctor_security": ("longhaul doctor --security --json", SeenFromOutside),
    "pack": ("longhaul pack INPUT --out URL --json", Packed),
    "data": ("longhaul data PLACE --json", SeenData),
    "slurm": ("longhaul slurm SPEC --json", Written),
}


def checked(name: str, printed: str | bytes) -> Any:
    """The JSON that a command printed, if its schema in ``docs/schemas`` is met."""
    found = strict_json(printed)
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    problems = [
        f"{'.'.join(map(str, error.absolute_path)) or name}: {error.message[:300]}"
        for whole in Draft202012Validator(schema).iter_errors(found)
        # Of several forms, what the nearest one lacks.
        for error in (best_match([whole]),)
    ]
    if problems:
        raise AssertionError(f"docs/schemas/{name}.json: " + "; ".join(problems))
    return found


def schema_text(name: str) -> str:
    command, kind = PRINTED[name]
    found = TypeAdapter(kind).json_schema(mode="serialization")
    # A report leaves rows to its tables, and says null for a number that is not finite.
    without = ("rows",) if name == "report" else ()
    definitions = {one: _strict(schema, without) for one, schema in found.pop("$defs", {}).items()}
    body = _strict(found, without)
    if config := definitions.get("ConfigRecord"):
        # Its values are the spec's, also a schedule's name and null.
        config["properties"]["optimizer"]["additionalProperties"] = {"type": ["number", "string", "null"]}
    if name == "report":
        body, definitions = _with_nulls(body), _with_nulls(definitions)
    described = f"What `{command}` prints. {body.pop('description', '')}".strip()
    schema = {"$schema": _DIALECT, "$id": f"{name}.json", "description": described, **body}
    if reached := _reached(body, definitions):
        schema["$defs"] = reached
    return json.dumps(schema, indent=1) + "\n"


def _strict(node: Any, without: tuple[str, ...]) -> Any:
    """The same schema without titles and defaults. An object has all of its keys and no other one."""
    if isinstance(node, list):
        return [_strict(one, without) for one in node]
    if not isinstance(node, dict):
        return node
    if "properties" not in node:
        return {key: _strict(one, without) for key, one in node.items() if key not in _LEFT_OUT}
    kept = {key: one for key, one in node["properties"].items() if key not in without}
    text = " ".join(node.get("description", "").replace("``", "`").split())
    return {
        **({"description": text} if text else {}),
        "type": "object",
        "properties": {key: _strict(one, without) for key, one in kept.items()},
        "required": [key for key, one in kept.items() if not one.get("maybe")],
        "additionalProperties": False,
    }


def _with_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_nulls(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node == {"type": "number"}:
        return {"type": ["number", "null"]}
    return {key: _with_nulls(one) for key, one in node.items()}


def _reached(body: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions that the body names, also through others; sorted, so that a change is seen."""
    names: set[str] = set()
    waiting = [*_named(body)]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += _named(definitions[name])
    return {name: definitions[name] for name in sorted(names)}


def _named(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _named(one)
    elif isinstance(node, dict):
        for key, one in node.items():
            if key == "$ref":
                yield str(one).rpartition("/")[2]
            else:
                yield from _named(one)
