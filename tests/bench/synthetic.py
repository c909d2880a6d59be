"""Results that nobody measured, labelled synthetic: many cells in two groups whose true ratio is known.

``python -m tests.bench.synthetic FOLDER [NUM_RUNS]`` makes such a store: the same arguments, the same bytes.
"""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from reporting.results.formulas import FLOPS_FORMULA, coefficient_of_variation, percentile
from reporting.results.records import (
    ConfigRecord,
    DeviceRecord,
    EnvironmentRecord,
    ErrorRecord,
    LossRecord,
    MemoryRecord,
    PerformanceRecord,
    RanksRecord,
    RunRecord,
)

SWEEP = "synthetic"
RUN_NOISE, STEP_NOISE = 0.01, 0.02
GB = 10**9
PEAK_FLOPS = {"h100": 989e12, "mi300x": 1307.4e12}
DEVICE = {"h100": "NVIDIA H100 80GB HBM3 (synthetic)", "mi300x": "AMD Instinct MI300X (synthetic)"}
MEMORY_BYTES = {"h100": 80 * GB, "mi300x": 192 * GB}
# Model: matmul parameters, and the share of the peak that one device of the first group reaches.
MODELS = {"llama-3.1-8b": (7_504_924_672, 0.40), "mistral-7b-v0.3": (7_113_805_824, 0.42)}
# Strategy: throughput against ddp's on one device, bytes per parameter that each of N devices holds.
STRATEGIES = {
    "ddp": (1.0, 18),
    "fsdp": (0.97, 5),
    "zero1": (0.98, 12),
    "zero2": (0.96, 9),
    "zero3": (0.92, 5),
}
# The second group over the first, in turn over the cells.
TRUE_RATIOS = (1.0, 1.03, 0.97, 1.2, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell; ``ratio`` is what the second group's throughput truly is of the first's."""

    group: str
    model: str
    strategy: str
    world_size: int
    seq_len: int
    micro_batch: int
    ratio: float

    @property
    def cell_id(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        return (
            f"{self.model}-{self.strategy}-ws{self.world_size}-seq{self.seq_len}-mb{self.micro_batch}"
            f"-bf16-{self.group}"
        )

    @property
    def tokens_per_step(self) -> int:
        return self.world_size * self.micro_batch * self.seq_len


def make_store(
    folder: Path,
    num_runs: int,
    *,
    repeats: int = 5,
    num_steps: int = 100,
    failed_share: float = 0.02,
    seed: int = 0,
) -> None:
    """Writes ``num_runs`` results below ``folder``, all that a cell has before the next one begins."""
    dice = Random(seed)
    runs = [(point, repeat) for point in points() for repeat in range(1, repeats + 1)]
    if num_runs > len(runs):
        raise ValueError(
            f"{num_runs} runs need more than {repeats} repeats: there are {len(runs) // repeats} cells"
        )
    failing = {point.cell_id for point in points() if dice.random() < failed_share}
    for order, (point, repeat) in enumerate(runs[:num_runs], start=1):
        if point.cell_id in failing:
            record = _failed(point, repeat, order)
        else:
            record = _measured(point, repeat, order, num_steps, dice)
        place = folder / "sweeps" / SWEEP / "runs" / f"{point.name}-r{repeat}-{point.cell_id[:8]}"
        place.mkdir(parents=True)
        (place / "result.json").write_bytes(record.to_json())


def points() -> Iterator[Point]:
    """Each cell of the first group is followed by its twin in the second."""
    axes = product(MODELS, STRATEGIES, (2, 4, 8, 16, 32), (1024, 2048, 4096, 8192), (1, 2, 4, 8, 16))
    for number, (model, strategy, world_size, seq_len, micro_batch) in enumerate(axes):
        for group in ("h100", "mi300x"):
            yield Point(
                group=group,
                model=model,
                strategy=strategy,
                world_size=world_size,
                seq_len=seq_len,
                micro_batch=micro_batch,
                ratio=TRUE_RATIOS[number % len(TRUE_RATIOS)],
            )


def _measured(point: Point, repeat: int, order: int, num_steps: int, dice: Random) -> RunRecord:
    step_sec = point.tokens_per_step / _true_tokens_per_sec(point) * (1 + dice.gauss(0, RUN_NOISE))
    times = tuple(round(step_sec * (1 + dice.gauss(0, STEP_NOISE)), 6) for _ in range(num_steps))
    window_sec = sum(times)
    tokens_per_sec = point.tokens_per_step * num_steps / window_sec
    flops_per_token = 6.0 * MODELS[point.model][0]
    peak = PEAK_FLOPS[point.group]
    memory_bytes = _memory_bytes(point)
    return _record(
        point,
        repeat,
        order,
        steps=num_steps,
        warmup_steps=10,
        warmup_rule="rolling_median_5_within_1pct_max_50",
        tokens_per_sec=tokens_per_sec,
        mean_step_time_sec=window_sec / num_steps,
        mean_loss=2.5,
        peak_vram_gb=memory_bytes / GB,
        h2d_gbps_per_gpu=12.5,
        mfu=tokens_per_sec / point.world_size * flops_per_token / peak,
        peak_flops=peak,
        peak_flops_source="synthetic",
        device_memory_bytes=MEMORY_BYTES[point.group],
        platform="cuda" if point.group == "h100" else "rocm",
        gpu_info=DeviceRecord(
            name=DEVICE[point.group],
            count=point.world_size,
            memory_bytes=MEMORY_BYTES[point.group],
            driver="570.86" if point.group == "h100" else "6.12.12",
        ),
        performance_metrics=_performance(point, times, tokens_per_sec),
        memory_metrics=MemoryRecord(
            peak_allocated_bytes_max=memory_bytes,
            peak_allocated_bytes_min=memory_bytes - GB // 10,
            peak_reserved_bytes_max=memory_bytes + GB,
            device_used_bytes_max=memory_bytes + 2 * GB,
            allocator_retries=0,
            host_peak_growth_bytes_max=2 * GB,
            predicted_bytes=memory_bytes,
        ),
        loss_metrics=LossRecord(first=3.0, last=2.0, median_last_tenth=2.05, reference_step=5, reference=2.9),
        per_rank=_ranks(point, times, memory_bytes),
        raw_step_times=times,
        environment=EnvironmentRecord(
            python="3.11.7",
            torch="2.13.0+cu130" if point.group == "h100" else "2.13.0+rocm7.2",
            packages={"ray": "2.60.0", "deepspeed": "0.19.8", "numpy": "2.4.6"},
            collectives="nccl 2.27" if point.group == "h100" else "rccl 2.26",
            variables={"OMP_NUM_THREADS": "8"},
            commit="0123456789abcdef0123456789abcdef01234567",
            source_digest="synthetic",
        ),
    )


def _failed(point: Point, repeat: int, order: int) -> RunRecord:
    error = ErrorRecord(
        reason="out of memory (synthetic)",
        phase="warmup",
        wanted_bytes=GB,
        ranks=(0,),
        log_tail=("synthetic",),
    )
    return _record(point, repeat, order, status="oom", error=error)


def _record(point: Point, repeat: int, order: int, **changes: object) -> RunRecord:
    config = ConfigRecord(
        parameters=MODELS[point.model][0],
        tokens_per_step=point.tokens_per_step,
        sync="window",
        max_s=60.0,
        seed=0,
        isolation="session",
        optimizer={"lr": 3e-4, "weight_decay": 0.1},
    )
    values: dict[str, object] = {
        "sweep": SWEEP,
        "cell_id": point.cell_id,
        "run_id": f"{point.cell_id}-r{repeat}",
        "repeat": repeat,
        "order": order,
        "attempt": 1,
        "group": point.group,
        "vendor": "nvidia" if point.group == "h100" else "amd",
        "simulated": True,
        "model": point.model,
        "strategy": point.strategy,
        "world_size": point.world_size,
        "seq_len": point.seq_len,
        "tier": "B",
        "precision": "bf16",
        "per_device_batch": point.micro_batch,
        "grad_accum": 1,
        "status": "ok",
        "error": None,
        "started_at": _time(order * 90),
        "finished_at": _time(order * 90 + 60),
        "flops_formula": FLOPS_FORMULA,
        "flops_per_token": 6.0 * MODELS[point.model][0],
        "training_config": config,
        "metrics": {},
    }
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]  # names and kinds are above


def _performance(point: Point, times: tuple[float, ...], tokens_per_sec: float) -> PerformanceRecord:
    return PerformanceRecord(
        window_sec=sum(times),
        p50_sec=percentile(times, 50),
        p90_sec=percentile(times, 90),
        p95_sec=percentile(times, 95),
        p99_sec=percentile(times, 99),
        min_sec=min(times),
        max_sec=max(times),
        cv=coefficient_of_variation(times),
        micro_step_time_sec=fmean(times),
        tokens_per_sec_per_device=tokens_per_sec / point.world_size,
        setup_sec=12.0,
        warmup_sec=8.0,
    )


def _ranks(point: Point, times: tuple[float, ...], memory_bytes: int) -> RanksRecord:
    each = point.world_size
    return RanksRecord(
        node=tuple(f"node-{rank // 8}" for rank in range(each)),
        total_sec=(sum(times),) * each,
        p50_sec=(percentile(times, 50),) * each,
        p95_sec=(percentile(times, 95),) * each,
        max_sec=(max(times),) * each,
        mean_loss=(2.5,) * each,
        peak_allocated_bytes=(memory_bytes,) * each,
        host_peak_growth_bytes=(2 * GB,) * each,
    )


def _true_tokens_per_sec(point: Point) -> float:
    """A share of the peak that falls a little with every doubling of the devices."""
    matmul, share = MODELS[point.model]
    scaling = 0.97 ** (point.world_size.bit_length() - 1)
    per_device = PEAK_FLOPS["h100"] * share / (6 * matmul)
    ratio = point.ratio if point.group == "mi300x" else 1.0
    return per_device * point.world_size * scaling * STRATEGIES[point.strategy][0] * ratio


def _memory_bytes(point: Point) -> int:
    """What a device would like to hold, cut off just below what the smaller kind of device has."""
    wanted = MODELS[point.model][0] * STRATEGIES[point.strategy][1] // point.world_size
    return min(wanted + point.seq_len * point.micro_batch * 500_000, 76 * GB)


def _time(seconds: int) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    make_store(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
