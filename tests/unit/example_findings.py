"""Findings to draw and to print: made up, plausible, always the same. Nothing here was measured.

``example_findings`` has something of everything, ``empty_findings`` nothing of anything, and
``hostile_findings`` names that no page expects around numbers that nobody knows.
"""

import math
from collections.abc import Iterator
from random import Random
from statistics import fmean, median, stdev
from typing import Any, Literal

from reporting.analysis.findings import (
    Advice,
    CellSummary,
    Check,
    Comparison,
    Difference,
    Estimate,
    Findings,
    Subject,
    Verdict,
)
from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.stretches import Stretch
from reporting.long_runs.summary import LongRun
from reporting.recording.read_data import DocumentFacts, ReadSource
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")
WORLD_SIZES = (1, 2, 4, 8)
MODEL = "llama-3.2-1b"
GROUPS = {
    "nvidia": ("nvidia", "NVIDIA H100 80GB HBM3", 85.0, 989.0),
    "amd": ("amd", "AMD Instinct MI300X", 205.0, 1307.4),
}
HOSTILE_NAME = '<script>alert("1")</script> a/b c $x_1^2$ & \\frac{ü}{漢} 🚀\n%s {0}'

_SEQ_LEN = 4096
_FLOPS_PER_TOKEN = 8.6e9
_TOKENS_PER_SEC = {"ddp": 36_500.0, "fsdp": 34_300.0, "zero1": 35_600.0, "zero2": 34_900.0, "zero3": 32_000.0}
_LOST_PER_DOUBLING = {"ddp": 0.030, "fsdp": 0.024, "zero1": 0.034, "zero2": 0.038, "zero3": 0.060}
# What the other group's throughput is of the first one's, so that every verdict appears.
_OTHER_OVER_FIRST = {"ddp": 1.08, "fsdp": 0.93, "zero1": 1.002, "zero2": 1.012, "zero3": 1.04}
_RUN_NOISE = {"ddp": 0.006, "fsdp": 0.008, "zero1": 0.003, "zero2": 0.03, "zero3": 0.01}


def empty_findings() -> Findings:
    return findings()


def example_findings(groups: tuple[str, ...] = ("nvidia", "amd")) -> Findings:
    """Two simulated groups, five strategies, 1 to 8 devices, and whatever can go wrong once."""
    cells = tuple(cell for group in groups for cell in _cells_of(group, Random(f"longhaul {group}")))
    rows = tuple(row for cell in cells for row in cell.rows)
    return findings(
        name="vendors-1b",
        newest_at="2026-11-20T18:04:11Z",
        answer=(
            "On llama-3.2-1b, 8 devices, amd (simulated) is 7.9 % faster than nvidia (simulated) with ddp.",
            "Best throughput: amd with ddp, 324k tokens/s. Least memory: fsdp and zero3, 12.9 GB.",
            "1 cell ran out of memory, 1 crashed; 1 comparison has too few repeats.",
        ),
        rows=rows,
        cells=cells,
        comparisons=_comparisons(cells),
        advice=_advice(cells),
        pareto=_front(cells),
        checks=_checks(),
        skipped=(
            Skipped(name="sweeps/vendors-1b/runs/torn/result.json", reason="not JSON (Expecting value)"),
            Skipped(name="sweeps/old/runs/a/result.json", reason="schema_version 0, expected 1"),
        ),
        runs=(long_run(),),
    )


def hostile_findings() -> Findings:
    """Every name is hostile, every number that may be unknown is None or, where only a float fits, NaN."""
    cells = (
        *(_hostile_cell(strategy, HOSTILE_NAME, None) for strategy in (HOSTILE_NAME, "")),
        _hostile_cell("ddp", "", Estimate(median=math.nan, low=math.nan, high=None, cv=None, num_runs=1)),
        _hostile_cell(
            "../fsdp", "a b", Estimate(median=math.inf, low=None, high=None, cv=math.nan, num_runs=0)
        ),
        _hostile_cell("zero2", HOSTILE_NAME, Estimate(median=0.0, low=-1.0, high=0.0, cv=0.0, num_runs=2)),
        _hostile_cell("zero3", HOSTILE_NAME, Estimate(median=1e15, low=1e-15, high=1e18, cv=9.0, num_runs=2)),
    )
    return findings(
        name=HOSTILE_NAME,
        store=f"s3://bucket/{HOSTILE_NAME}",
        answer=(HOSTILE_NAME, ""),
        rows=tuple(row for cell in cells for row in cell.rows),
        cells=cells,
        comparisons=(
            _hostile_comparison(cells[0].subject, "inconclusive"),
            _hostile_comparison(cells[4].subject, "faster"),
        ),
        advice=(
            Advice(
                goal="memory", group=HOSTILE_NAME, model=HOSTILE_NAME, cell_id=None, sentence=HOSTILE_NAME
            ),
        ),
        pareto=frozenset({"no such cell", cells[4].cell_id}),
        checks=(
            Check(name=HOSTILE_NAME, level="unknown", subject=HOSTILE_NAME, found="", advice=HOSTILE_NAME),
        ),
        skipped=(Skipped(name=f"{HOSTILE_NAME}.json", reason=HOSTILE_NAME),),
        runs=_hostile_runs(),
    )


def findings(**changes: Any) -> Findings:
    """Of nothing, but for ``changes``."""
    values: dict[str, Any] = {
        "name": "empty",
        "store": "results",
        "newest_at": None,
        "pareto": frozenset(),
        **dict.fromkeys(("answer", "rows", "cells", "comparisons", "advice", "checks", "skipped"), ()),
    }
    return Findings(**{**values, **changes})


def summary(subject: Subject, group: str, rows: tuple[Row, ...], **changes: Any) -> CellSummary:
    """The cell of ``rows``, summed up so simply that only a picture needs it."""
    measured = [row for row in rows if row.status == "ok" and row.tokens_per_sec]
    first = measured[0] if measured else rows[0]
    per_device = [(row.tokens_per_sec or 0.0) / subject.world_size for row in measured]
    values: dict[str, Any] = {
        "cell_id": f"{group}/{subject}",
        "sweep": "vendors-1b",
        "group": group,
        "vendor": first.vendor,
        "subject": subject,
        "status": "ok" if measured else rows[0].status,
        "num_failed": len(rows) - len(measured),
        "flags": ("simulated",) if first.simulated else (),
        "tokens_per_sec": estimate([row.tokens_per_sec or 0.0 for row in measured]),
        "tokens_per_sec_per_device": estimate(per_device),
        "step_time_sec": estimate([row.mean_step_time_sec or 0.0 for row in measured]),
        "peak_vram_gb": first.peak_vram_gb,
        "device_memory_gb": first.device_memory_bytes / 1e9 if first.device_memory_bytes else None,
        "predicted_gb": first.predicted_bytes / 1e9 if first.predicted_bytes else None,
        "h2d_gbps_per_gpu": first.h2d_gbps_per_gpu,
        "scaling_efficiency_pct": None,
        "scaling_baseline_world_size": None,
        "mfu": first.mfu,
        "loss": first.mean_loss,
        "num_severe_outliers": 0,
        "num_steps": sum(row.steps or 0 for row in measured),
        "error_reason": next((row.error_reason for row in rows if row.error_reason), None),
        "rows": rows,
    }
    return CellSummary(**{**values, **changes})


def estimate(values: list[float]) -> Estimate | None:
    if not values:
        return None
    if len(values) == 1:
        return Estimate(median=values[0], low=None, high=None, cv=None, num_runs=1)
    half = 2.0 * stdev(values) / math.sqrt(len(values))
    middle = median(values)
    return Estimate(
        median=middle,
        low=middle - half,
        high=middle + half,
        cv=stdev(values) / fmean(values),
        num_runs=len(values),
    )


def _cells_of(group: str, noise: Random) -> Iterator[CellSummary]:
    for strategy in STRATEGIES:
        alone: CellSummary | None = None
        for world_size, micro_batch in [*((size, 2) for size in WORLD_SIZES), (8, 1), (8, 4), (8, 8)]:
            subject = _subject(strategy, world_size, micro_batch)
            rows = tuple(_row(group, subject, repeat, noise) for repeat in range(_num_repeats(subject)))
            cell = summary(subject, group, rows, **_efficiency(rows, subject, alone))
            alone = alone or cell
            yield cell


def _subject(strategy: str, world_size: int, micro_batch: int) -> Subject:
    return Subject(
        model=MODEL,
        strategy=strategy,
        world_size=world_size,
        seq_len=_SEQ_LEN,
        micro_batch=micro_batch,
        grad_accum=4,
        precision="bf16",
    )


def _num_repeats(subject: Subject) -> int:
    return 3 if (subject.strategy, subject.micro_batch) == ("zero3", 1) else 5


def _efficiency(rows: tuple[Row, ...], subject: Subject, alone: CellSummary | None) -> dict[str, Any]:
    measured = [row.tokens_per_sec for row in rows if row.tokens_per_sec]
    if not measured or subject.micro_batch != 2:
        return {}
    per_device = median(measured) / subject.world_size
    base = alone.tokens_per_sec.median if alone and alone.tokens_per_sec else per_device
    return {"scaling_efficiency_pct": 100 * per_device / base, "scaling_baseline_world_size": 1}


def _row(group: str, subject: Subject, repeat: int, noise: Random) -> Row:
    vendor, device, memory_gb, peak = GROUPS[group]
    needed = _memory_gb(subject)
    common: dict[str, Any] = {
        "strategy": subject.strategy,
        "world_size": subject.world_size,
        "seq_len": subject.seq_len,
        "tier": "B",
        "per_device_batch": subject.micro_batch,
        "grad_accum": subject.grad_accum,
        "sweep": "vendors-1b",
        "cell_id": f"{group}/{subject}",
        "run_id": f"{group}/{subject} r{repeat}",
        "repeat": repeat,
        "group": group,
        "vendor": vendor,
        "simulated": True,
        "model": subject.model,
        "precision": subject.precision,
        "started_at": "2026-11-20T17:58:00Z",
        "finished_at": "2026-11-20T18:04:11Z",
        "timing_unit": "optimizer_step",
        "source": f"sweeps/vendors-1b/runs/{group}-{subject.strategy}-{repeat}/result.json".replace(" ", "-"),
        "device_name": device,
        "device_count": subject.world_size,
        "device_memory_bytes": int(memory_gb * 1e9),
        "predicted_bytes": int(needed * 1e9),
        "driver": "570.86" if vendor == "nvidia" else "6.12.12",
        "torch": "2.13.0+cu130" if vendor == "nvidia" else "2.13.0+rocm7.2",
        "collectives": "nccl 2.28" if vendor == "nvidia" else "rccl 2.27",
        "python": "3.12.3",
        "nodes": (f"{group}-node-0",),
        "seed": 17,
        "peak_flops": peak * 1e12,
        "flops_per_token": _FLOPS_PER_TOKEN,
        "flops_formula": "palm_noncausal_v1",
    }
    if needed > memory_gb:
        reason = f"CUDA out of memory: {needed:.1f} GB needed, {memory_gb:.1f} GB there"
        return Row(**common, status="oom", error_reason=reason, error_phase="warmup")
    if (group, subject.strategy, subject.world_size, subject.micro_batch) == ("amd", "zero3", 4, 2):
        tail = ("RuntimeError: RCCL error: unhandled system error", "rank 3 left the group")
        return Row(
            **common,
            status="crash",
            error_reason="rank 3 died (exit 134)",
            error_phase="steps",
            error_log_tail=tail,
        )
    return Row(**common, **_measured(group, subject, needed, noise))


def _memory_gb(subject: Subject) -> float:
    """States of 16 bytes per parameter, sharded as the strategy says, and activations per sequence."""
    shared = {"ddp": 0.0, "zero1": 8.0, "zero2": 10.0, "fsdp": 14.0, "zero3": 14.0}[subject.strategy]
    states = 1.24 * ((16.0 - shared) + shared / subject.world_size)
    return states + 8.6 * subject.micro_batch


def _measured(group: str, subject: Subject, memory_gb: float, noise: Random) -> dict[str, Any]:
    rate = _TOKENS_PER_SEC[subject.strategy] * (0.86 + 0.14 * math.log2(subject.micro_batch) / 1.5)
    rate *= _OTHER_OVER_FIRST[subject.strategy] if group == "amd" else 1.0
    rate *= 1.0 - _LOST_PER_DOUBLING[subject.strategy] * math.log2(subject.world_size)
    rate *= 1.0 + _RUN_NOISE[subject.strategy] * noise.uniform(-1.5, 1.5)
    tokens_per_step = subject.world_size * subject.micro_batch * subject.grad_accum * subject.seq_len
    step_time = tokens_per_step / (rate * subject.world_size)
    times = tuple(round(step_time * (1.0 + 0.004 * noise.gauss(0.0, 1.0) ** 2), 6) for _ in range(100))
    mean = fmean(times)
    return {
        "status": "ok",
        "steps": len(times),
        "warmup_steps": 10,
        "tokens_per_sec": tokens_per_step / mean,
        "tokens_per_sec_per_device": tokens_per_step / mean / subject.world_size,
        "mean_step_time_sec": mean,
        "step_time_p50_sec": median(times),
        "step_time_p99_sec": sorted(times)[98],
        "step_time_min_sec": min(times),
        "step_time_max_sec": max(times),
        "step_time_cv": stdev(times) / mean,
        "window_sec": sum(times),
        "mean_loss": 7.412 + 0.002 * noise.random(),
        "peak_vram_gb": memory_gb * 0.97,
        "h2d_gbps_per_gpu": (24.0 if group == "amd" else 27.0) * (1.0 - 0.03 * math.log2(subject.world_size)),
        "scaling_baseline_world_size": 1,
        "mfu": rate * _FLOPS_PER_TOKEN / (GROUPS[group][3] * 1e12),
        "tokens_per_step": tokens_per_step,
        "raw_step_times": times,
    }


def _comparisons(cells: tuple[CellSummary, ...]) -> tuple[Comparison, ...]:
    sides: dict[Subject, dict[str, CellSummary]] = {}
    for cell in cells:
        sides.setdefault(cell.subject, {})[cell.group] = cell
    pairs = [(side["nvidia"], side["amd"]) for side in sides.values() if len(side) == 2]
    return tuple(_comparison(baseline, other) for baseline, other in pairs)


def _comparison(baseline: CellSummary, other: CellSummary) -> Comparison:
    a, b = baseline.tokens_per_sec, other.tokens_per_sec
    ratio = b.median / a.median if a and b else None
    half = 0.011 + (0.02 if baseline.subject.strategy == "zero2" else 0.0)
    low, high = (ratio - half, ratio + half) if ratio else (None, None)
    return Comparison(
        subject=baseline.subject,
        baseline=baseline.group,
        other=other.group,
        num_baseline=a.num_runs if a else 0,
        num_other=b.num_runs if b else 0,
        ratio=ratio,
        low=low,
        high=high,
        p=0.0079 if ratio else None,
        p_adjusted=0.021 if ratio else None,
        cliffs_delta=(1.0 if ratio > 1.0 else -1.0) if ratio else None,
        verdict=_verdict(min(a.num_runs, b.num_runs) if a and b else 0, low, high),
        differences=(
            Difference(what="torch", baseline="2.13.0+cu130", other="2.13.0+rocm7.2"),
            Difference(what="collectives", baseline="nccl 2.28", other="rccl 2.27"),
            Difference(what="driver", baseline="570.86", other="6.12.12"),
        ),
    )


def _verdict(num_runs: int, low: float | None, high: float | None) -> Verdict:
    if num_runs < 4 or low is None or high is None:
        return "too few repeats"
    if low >= 0.98 and high <= 1.02:
        return "equivalent"
    if low > 1.0:
        return "faster"
    return "slower" if high < 1.0 else "inconclusive"


def _advice(cells: tuple[CellSummary, ...]) -> tuple[Advice, ...]:
    goals: tuple[Literal["throughput", "memory", "efficiency"], ...] = ("throughput", "memory", "efficiency")
    found = []
    for group in dict.fromkeys(cell.group for cell in cells):
        best = max((cell for cell in cells if cell.group == group), key=_throughput)
        for goal in goals:
            sentence = f"For {goal} on {group}: {best.subject}."
            found.append(Advice(goal=goal, group=group, model=MODEL, cell_id=best.cell_id, sentence=sentence))
    return tuple(found)


def _throughput(cell: CellSummary) -> float:
    return cell.tokens_per_sec.median if cell.tokens_per_sec else 0.0


def _front(cells: tuple[CellSummary, ...]) -> frozenset[str]:
    """Of each group at 8 devices: nobody is faster with less memory."""
    front = set()
    for cell in (cell for cell in cells if cell.tokens_per_sec and cell.subject.world_size == 8):
        presence = [other for other in cells if other.group == cell.group and other.subject.world_size == 8]
        if not any(
            _throughput(other) > _throughput(cell)
            and (other.peak_vram_gb or 1e9) <= (cell.peak_vram_gb or 0.0)
            for other in presence
        ):
            front.add(cell.cell_id)
    return frozenset(front)


def _checks() -> tuple[Check, ...]:
    return (
        Check(name="throughput plausible", level="ok", subject="nvidia", found="MFU 28 to 38 %"),
        Check(
            name="step time consistent",
            level="warning",
            subject="amd/llama-3.2-1b zero2 x8",
            found="run medians differ by 11.2 %",
            advice="Look at clocks and at what else ran there; repeat the cell.",
        ),
        Check(
            name="memory below the device's",
            level="failed",
            subject="nvidia/llama-3.2-1b ddp x8 b8",
            found="88.6 GB needed, 85.0 GB there",
            advice="Take micro_batch 4, or zero1.",
        ),
        Check(name="clocks capped", level="unknown", subject="amd", found="no clock was sampled"),
    )


def long_run() -> LongRun:
    """500 points of a day's training that lost a node twice."""
    noise = Random("longhaul run")
    steps = tuple(range(0, 50_000, 100))
    losses = tuple(2.1 + 8.9 * math.exp(-step / 3_000) + 0.04 * noise.gauss(0, 1) for step in steps)
    incidents = (
        (0.0, "start", "attempt 1"),
        (21_600.0, "failure", "attempt 1, node nvidia-3 lost"),
        (21_860.0, "start", "attempt 2"),
        (21_905.0, "restore", "attempt 2, step 12400"),
        (57_000.0, "failure", "attempt 2, rank 5: NCCL timeout"),
        (57_360.0, "start", "attempt 3"),
        (57_410.0, "restore", "attempt 3, step 33100"),
        (30_000.0, "alarm", "attempt 2, step 18300, throughput drop: 160,000 tokens/s, usual is 251,000"),
        *((1_800.0 * number, "save", f"step {1_040 * number}, to the store") for number in range(1, 48)),
    )
    recoveries = (
        Recovery(
            term=1,
            at_s=21_600.0,
            cause="failure",
            text="node nvidia-3 lost",
            step=12_400,
            num_redone=210,
            phases={
                "detect": 35.0,
                "wait": 8.0,
                "schedule": 80.0,
                "start": 130.0,
                "restore": 60.0,
                "recompute": 380.0,
            },
            device_s=8 * 693.0,
        ),
        Recovery(
            term=2,
            at_s=57_000.0,
            cause="failure",
            text="rank 5: NCCL timeout",
            step=33_100,
            num_redone=430,
            phases={"detect": 60.0, "schedule": 60.0, "start": 130.0, "restore": 60.0, "recompute": 730.0},
            device_s=8 * 1_040.0,
        ),
    )
    seconds = [600.0 * index for index in range(144)]
    power = {
        f"gpu {device}": tuple((second, _power(second, device, noise)) for second in seconds)
        for device in range(8)
    }
    clock = {
        f"gpu {device}": tuple((second, 1_755.0 if second % 7_200 else 1_620.0) for second in seconds)
        for device in range(8)
    }
    return LongRun(
        name="pretrain-1b",
        group="nvidia",
        vendor="nvidia",
        model=MODEL,
        strategy="fsdp",
        world_size=8,
        num_steps=50_000,
        num_superseded=640,
        attention_kernel="flash",
        tokens_per_sec=251_300.0,
        steps=steps,
        losses=losses,
        val_steps=tuple(range(5_000, 50_001, 5_000)),
        val_losses=tuple(2.15 + 8.9 * math.exp(-step / 3_000) for step in range(5_000, 50_001, 5_000)),
        wall_sec=86_400.0,
        goodput=0.953,
        phases={
            "productive": 82_339.0,
            "detect": 95.0,
            "wait": 8.0,
            "schedule": 140.0,
            "start": 260.0,
            "restore": 120.0,
            "recompute": 1_110.0,
            "stall": 90.0,
            "data wait": 210.0,
            "eval": 980.0,
            "save": 640.0,
            "idle": 408.0,
        },
        goodput_trace=tuple((second, _goodput(second)) for second in seconds[1:]),
        incidents=incidents,
        recoveries=recoveries,
        power_watts=power,
        clock_mhz=clock,
        data=(_source("web", 0.75, _DOCUMENTS), _source("code", 0.25, None)),
    )


_DOCUMENTS = DocumentFacts(
    num_tokens=40_000_000_000,
    num_documents=31_000_000,
    longest=912_000,
    length_bounds=[0, 1, 2],
    length_counts=[0, 31_000_000],
    num_compared=31_000_000,
    num_copies=420_000,
    num_padding_tokens=0,
    num_cut=9_300_000,
)


def _source(name: str, share: float, documents: DocumentFacts | None) -> ReadSource:
    return ReadSource(
        name=name,
        share=share,
        num_tokens=40_000_000_000,
        num_samples=19_531_186,
        tokenizer="tokenizer.json",
        digest=name.ljust(64, "0"),
        documents=documents,
        unread=None if documents else "--documents reads all 80,000,000,000 bytes for them",
    )


def _power(second: float, device: int, noise: Random) -> float:
    is_down = 21_600 <= second <= 22_200 or 57_000 <= second <= 57_600
    return (110.0 if is_down else 640.0 + 4 * device) + noise.gauss(0, 6)


def _goodput(second: float) -> float:
    lost = 300.0 + 0.025 * second + (700.0 if second > 21_600 else 0.0) + (800.0 if second > 57_000 else 0.0)
    return max(0.0, 1.0 - lost / second)


def _hostile_cell(strategy: str, group: str, guess: Estimate | None) -> CellSummary:
    subject = Subject(
        model=HOSTILE_NAME,
        strategy=strategy,
        world_size=0 if guess is None else 1,
        seq_len=0,
        micro_batch=-1,
        grad_accum=0,
        precision=HOSTILE_NAME,
    )
    row = Row(
        source=HOSTILE_NAME, status=HOSTILE_NAME, error_reason=HOSTILE_NAME, raw_step_times=(math.nan, 0.0)
    )
    number = guess.median if guess else None
    return summary(
        subject,
        group,
        (row,),
        status="ok" if guess else HOSTILE_NAME,
        flags=(HOSTILE_NAME, "simulated"),
        tokens_per_sec=guess,
        tokens_per_sec_per_device=guess,
        step_time_sec=guess,
        **dict.fromkeys(
            (
                "peak_vram_gb",
                "device_memory_gb",
                "h2d_gbps_per_gpu",
                "scaling_efficiency_pct",
                "mfu",
                "loss",
                "joules_per_token",
            ),
            number,
        ),
    )


def _hostile_comparison(subject: Subject, verdict: Verdict) -> Comparison:
    return Comparison(
        subject=subject,
        baseline=HOSTILE_NAME,
        other="",
        num_baseline=0,
        num_other=0,
        ratio=None,
        low=None,
        high=None,
        p=None,
        p_adjusted=None,
        cliffs_delta=None,
        verdict=verdict,
        differences=(Difference(what=HOSTILE_NAME, baseline=HOSTILE_NAME, other=""),),
    )


def _hostile_runs() -> tuple[LongRun, ...]:
    common: dict[str, Any] = {"vendor": None, "model": "", "strategy": HOSTILE_NAME, "world_size": 0}
    common |= {"num_steps": 0, "num_superseded": 0, "tokens_per_sec": None}
    nowhere = Stretch(
        group=HOSTILE_NAME,
        vendor=HOSTILE_NAME,
        at_s=math.nan,
        num_attempts=-1,
        num_steps=0,
        tokens_per_sec=math.inf,
        held_s=math.nan,
        device_s=math.inf,
    )
    unknown = LongRun(name=HOSTILE_NAME, group=HOSTILE_NAME, stretches=(nowhere, nowhere), **common)
    nans = LongRun(
        name=HOSTILE_NAME,
        group="",
        steps=(0, 1, 2),
        losses=(None, math.nan, 1e300),
        val_steps=(1, 2),
        val_losses=(math.nan, -2.0),
        wall_sec=math.nan,
        goodput=math.nan,
        phases={HOSTILE_NAME: 3.0, "": math.nan, "productive": 0.0},
        goodput_trace=((math.nan, math.nan), (0.0, math.inf)),
        incidents=((math.nan, HOSTILE_NAME, HOSTILE_NAME), (-5.0, "", ""), (7.0, HOSTILE_NAME, HOSTILE_NAME)),
        recoveries=(
            Recovery(
                term=-1,
                at_s=math.nan,
                cause=HOSTILE_NAME,
                text=HOSTILE_NAME,
                step=None,
                num_redone=-3,
                phases={HOSTILE_NAME: 1.0, "detect": math.nan, "restore": -1.0},
                device_s=math.inf,
            ),
        ),
        power_watts={HOSTILE_NAME: ((math.nan, 1.0), (0.0, math.nan)), "": ()},
        clock_mhz={HOSTILE_NAME: ((0.0, 0.0), (1.0, -5.0))},
        data=(
            ReadSource(
                name=HOSTILE_NAME,
                share=math.nan,
                num_tokens=0,
                num_samples=-1,
                tokenizer=HOSTILE_NAME,
                digest=HOSTILE_NAME,
                documents=None,
                unread=HOSTILE_NAME,
            ),
        ),
        **common,
    )
    return (unknown, nans)
