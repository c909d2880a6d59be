"""Findings are what a report says, as data: the modules that draw and write it decide nothing. Pure.

A *cell* is a configuration in one group, measured in several repeats. Its *subject* is the same without the
group, so that two groups' cells of one subject can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any, Literal

from reporting.long_runs.summary import LongRun
from reporting.results.rows import Row
from reporting.results.skipped import Skipped
from reporting.results.unfinished import Unfinished

Verdict = Literal["faster", "slower", "equivalent", "inconclusive", "too few repeats"]
CheckLevel = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median over runs, the bounds between which it lies with 95 % confidence, and the CV over runs.

    ``low`` and ``high`` are None for fewer than three runs, ``cv`` for a single run.
    """

    median: float
    low: float | None
    high: float | None
    cv: float | None
    num_runs: int

    def is_above(self, other: "Estimate | None") -> bool:
        """Whether it is shown to be higher: the intervals of both don't meet."""
        if other is None or self.low is None or other.high is None:
            return False
        return self.low > other.high


# A subject's micro-batch, where the largest that fits was asked for.
LARGEST = -1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Subject:
    """The configuration that two groups' cells have in common. ``settings`` is a ``settings_text``.

    If the largest micro-batch that fits was asked for, ``micro_batch`` is ``LARGEST`` and ``grad_accum`` has
    the sequences of a device and step: what was found may differ from group to group.
    """

    model: str
    strategy: str
    world_size: int
    seq_len: int
    micro_batch: int
    grad_accum: int
    precision: str
    settings: str = ""

    @property
    def sequences(self) -> int:
        """The sequences of a step, over all devices."""
        of_device = self.grad_accum * (1 if self.micro_batch == LARGEST else self.micro_batch)
        return self.world_size * of_device

    @property
    def batch(self) -> tuple[str, str]:
        """The micro-batch and the number of them, in words."""
        if self.micro_batch == LARGEST:
            return f"max of {self.grad_accum}", "-"
        return str(self.micro_batch), str(self.grad_accum)

    @property
    def short_batch(self) -> str:
        size, number = self.batch
        return f"b{size}" if self.micro_batch == LARGEST else f"b{size} g{number}"

    def __str__(self) -> str:
        return (
            f"{self.model} {self.strategy} x{self.world_size} S{self.seq_len} "
            f"{self.short_batch} {self.precision}"
            f"{self.settings and f' {self.settings}'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """A cell with all of its runs in ``rows``. ``status`` is ``ok`` if any run is ok, else the most common
    failure.

    ``flags`` are words: ``unstable``, ``outliers``, ``recompiled``, ``some failed``, ``simulated``,
    ``imported``.
    """

    cell_id: str
    sweep: str
    group: str
    vendor: str | None
    subject: Subject
    status: str
    num_failed: int
    flags: tuple[str, ...]
    tokens_per_sec: Estimate | None
    tokens_per_sec_per_device: Estimate | None
    step_time_sec: Estimate | None
    peak_vram_gb: float | None
    device_memory_gb: float | None
    predicted_gb: float | None
    h2d_gbps_per_gpu: float | None
    scaling_efficiency_pct: float | None
    scaling_baseline_world_size: int | None
    mfu: float | None
    hfu: float | None = None
    joules_per_token: float | None = None
    loss: float | None
    num_severe_outliers: int
    num_steps: int
    error_reason: str | None
    rows: tuple[Row, ...]

    @property
    def is_emulated(self) -> bool:
        """See ``Row``."""
        return any(row.is_emulated for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A condition that was not the same on the two sides of a comparison, with each side's values joined."""

    what: str
    baseline: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison. ``ratio`` is the other's throughput over the baseline's, with its 95 % interval.

    ``p`` is the exact Mann-Whitney p; ``p_adjusted`` is adjusted over all comparisons of the report
    (Benjamini-Hochberg). ``p_slower_adjusted`` is Welch's one-sided p that the other is not slower.
    ``cliffs_delta`` > 0 means that the other is faster. All are None if a side has no numbers; the interval
    and Welch's p are None too if a side has fewer than four runs. Statuses are as those of cells.

    With two or more sessions on each side, the interval is over sessions too.

    ``verdict`` is a ``Verdict``; or, if a side has no numbers, its status, such as ``oom``.
    """

    subject: Subject
    baseline: str
    other: str
    num_baseline: int
    num_other: int
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    cliffs_delta: float | None
    verdict: str
    differences: tuple[Difference, ...]
    baseline_tokens_per_sec: float | None = None
    other_tokens_per_sec: float | None = None
    baseline_status: str = "ok"
    other_status: str = "ok"
    p_slower_adjusted: float | None = None
    baseline_sessions: int = 1
    other_sessions: int = 1

    @property
    def failures(self) -> str:
        """Which side has no numbers, and why, such as ``oom in amd``."""
        sides = ((self.baseline, self.baseline_status), (self.other, self.other_status))
        return ", ".join(f"{status} in {group}" for group, status in sides if status != "ok")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best setting of one group. ``micro_batch`` is what ran, also where the largest was asked for."""

    group: str
    subject: Subject
    micro_batch: int
    num_candidates: int
    num_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchUp:
    """Two groups, each at its best, with the same model, devices, sequence length, precision and number of
    sequences in a step.

    ``comparison`` is of runs whose settings were chosen by other runs: a setting that won by luck does not
    count as that good. ``why`` says what the two do differently; it is empty if they do the same.
    """

    sequences: int
    baseline: Choice
    other: Choice
    comparison: Comparison
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A result that somebody published, as its source says it; None where the source says nothing.

    ``device`` is the name of its data sheet, such as ``H100 SXM``. ``fp8`` and ``strategy`` may be
    ``unnamed``. ``other`` names settings that nothing here has.
    """

    source: str
    url: str
    model: str
    parameters: int
    device: str
    tokens_per_sec_per_device: float
    date: str | None = None
    device_note: str | None = None
    devices: int | None = None
    strategy: str | None = None
    precision: str | None = None
    fp8: str | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    sequences_per_step: int | None = None
    checkpointing: str | None = None
    compile: str | None = None
    other: str | None = None
    remark: str | None = None
    mfu_pct: float | None = None
    software: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BesidePublished:
    """A measured cell and the published result that is nearest to it. ``ratio`` is None for models of other
    sizes.
    """

    cell_id: str
    sweep: str
    group: str
    subject: Subject
    tokens_per_sec_per_device: float
    published: Published
    ratio: float | None
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The best cell for one goal within one model and group, or a sentence that says why there is none."""

    goal: Literal["throughput", "memory", "efficiency"]
    group: str
    model: str
    cell_id: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a check. ``found`` says what was seen and ``advice`` what to do; ``advice`` is empty if all
    is well.
    """

    name: str
    level: CheckLevel
    subject: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a device of a group costs, in the currency of its ``Prices``. None where nobody said it."""

    group: str
    per_device_hour: float
    spot_per_device_hour: float | None = None
    per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one currency, ordered by group. ``currency`` is in capitals, such as ``USD``."""

    currency: str
    groups: tuple[Price, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """What a training of so many tokens takes at a cell's speed.

    ``goodput`` is that of the group's long runs, and is in days and costs; without one they are those of
    steps alone. ``kwh`` and ``energy_cost`` are of the devices, for steps alone.
    """

    goodput: float | None
    days: Estimate
    cost: Estimate | None
    spot_cost: Estimate | None
    kwh: float | None
    energy_cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCost:
    """What a million tokens cost in a cell, at the speed of its steps."""

    cell_id: str
    sweep: str
    group: str
    subject: Subject
    per_million_tokens: Estimate | None
    spot_per_million_tokens: Estimate | None
    kwh_per_million_tokens: float | None
    energy_per_million_tokens: float | None
    training: TrainingCost | None


# Whether the other group's tokens cost less than the baseline's.
PriceVerdict = Literal["cheaper", "dearer", "undecided", "too few repeats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The price per device-hour at which a device of ``other`` is worth as much as one of ``baseline`` at
    its price, for one comparison's subject. The interval is that of their throughputs' ratio.

    ``verdict`` is None if the other's price is not known.
    """

    subject: Subject
    baseline: str
    other: str
    baseline_price: float
    other_price: float | None
    price: float
    low: float | None
    high: float | None
    verdict: PriceVerdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What training costs. ``prices`` and ``tokens`` are what was asked for; ``goodputs`` are by group.

    Costs are ordered as cells, break-even prices as comparisons, ``best_break_evens`` as match-ups: their
    subject is the other's best setting.
    """

    prices: Prices | None
    tokens: float | None
    goodputs: Mapping[str, float]
    costs: tuple[CellCost, ...]
    break_evens: tuple[BreakEven, ...]
    best_break_evens: tuple[BreakEven, ...] = ()


# The name of the chart that belongs to the answer.
FIRST_CHART = "verdicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of findings, as ``png`` for documents and as ``svg`` for the page.

    ``name`` is a file's name without its suffix; ``alt`` describes the picture in words.
    """

    name: str
    title: str
    caption: str
    alt: str
    png: bytes
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that a report shows. Cells are ordered by group, model, strategy, world size and the rest.

    ``answer`` is the first thing to read, sentence by sentence. ``newest_at`` is when the newest row ended,
    so that a report of the same rows is the same whenever it is made. ``money`` is None if nobody asked.
    """

    name: str
    store: str
    newest_at: str | None
    answer: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: tuple[CellSummary, ...]
    comparisons: tuple[Comparison, ...]
    advice: tuple[Advice, ...]
    pareto: frozenset[str]
    checks: tuple[Check, ...]
    skipped: tuple[Skipped, ...]
    runs: tuple[LongRun, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()
    money: Money | None = None
    at_best: tuple[MatchUp, ...] = ()
    published: tuple[BesidePublished, ...] = ()


def as_plain(findings: Findings) -> dict[str, Any]:
    """Returns everything but the rows in types that JSON can hold. Rows have a table of their own."""
    found = _plain(findings)
    assert isinstance(found, dict)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.name != "rows")
        return {name: _plain(getattr(value, name)) for name in names}
    match value:
        case Mapping():
            return {key: _plain(found) for key, found in sorted(value.items())}
        case frozenset():
            return sorted(value)
        case tuple():
            return [_plain(found) for found in value]
        case float():
            return value if isfinite(value) else None
    return value
