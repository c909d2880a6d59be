"""Ten kinds of store, concluded as a report concludes them: made-up rows, *simulated*, always the same."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import Findings, Price, Prices
from reporting.results.rows import Row
from reporting.results.unfinished import Unfinished
from tests.unit.example_findings import long_run
from tests.unit.result_rows import row

SPEEDS = {"ddp": 36_000.0, "fsdp": 34_000.0, "zero1": 35_500.0, "zero2": 35_000.0, "zero3": 31_000.0}
DEVICES = {
    "nvidia": ("NVIDIA H100 80GB HBM3", 80e9, 1.0, 700.0),
    "amd": ("AMD Instinct MI300X", 192e9, 0.95, 750.0),
    "b200": ("NVIDIA B200", 180e9, 1.9, 1000.0),
}
PRICES = Prices(
    currency="USD",
    groups=(Price(group="amd", per_device_hour=2.1), Price(group="nvidia", per_device_hour=2.5)),
)


def example_stores() -> dict[str, Findings]:
    two = list(_sweep(("nvidia", "amd")))
    one_cell = [each for each in two if each.cell_id == "nvidia-ddp-8-2"]
    return {
        "two groups": conclude("vendors-8b", "s3://bench/longhaul", two, prices=PRICES, tokens=1e12),
        "three groups": conclude("three", "s3://bench/longhaul", list(_sweep(("nvidia", "amd", "b200")))),
        "one group": conclude("one", "results", [each for each in two if each.group == "amd"]),
        "one cell": conclude("cell", "results", one_cell),
        "all failed": conclude("failed", "results", [_failed(each) for each in two[:60]]),
        "unfinished": conclude(
            "unfinished", "results", two[:150:3],
            unfinished=[Unfinished(sweep="vendors-8b", num_runs=400, num_missing=350)],
        ),
        "long run": conclude("train", "s3://runs/longhaul", [], runs=[long_run()]),
        "long run that goes on": conclude(
            "train", "s3://runs/longhaul", [], runs=[replace(long_run(), goodput=None, recoveries=())]
        ),
        "nothing": conclude("empty", "results", []),
        "many cells": conclude("many", "results", list(_many())),
    }  # fmt: skip


def _sweep(groups: tuple[str, ...]) -> Iterator[Row]:
    """On 80 GB a micro-batch of 8 runs out of memory; it is the fastest."""
    dice = Random("stores")
    for group in groups:
        _, memory, factor, _ = DEVICES[group]
        for strategy, speed in SPEEDS.items():
            for world_size in (1, 8):
                for size, gain in ((1, 0.8), (2, 0.92), (4, 1.0), (8, 1.18)):
                    for repeat in range(1, 6):
                        fits = size < 8 or memory > 100e9
                        rate = speed * factor * gain * (0.97 if world_size == 8 else 1.0)
                        rate *= world_size * (1 + dice.gauss(0, 0.01))
                        yield _row(group, strategy, world_size, size, repeat, rate if fits else None)


def _row(group: str, strategy: str, world_size: int, size: int, repeat: int, rate: float | None) -> Row:
    name, memory, _, power = DEVICES[group]
    is_amd = group == "amd"
    of_run = {
        "peak_vram_gb": 22.0 + 9.0 * size + len(strategy),
        "mfu": (rate or 0.0) / world_size * 4.8e10 / (1307e12 if is_amd else 989e12),
        "tokens_per_sec_per_device": (rate or 0.0) / world_size,
        "raw_step_times": tuple(
            32_768 * world_size / (rate or 1.0) * (1 + step % 7 / 300) for step in range(20)
        ),
        "mean_loss": 8.1,
        "energy_joules_per_token": 0.02,
    }
    return row(
        rate,
        sweep="vendors-8b",
        group=group,
        vendor="amd" if is_amd else "nvidia",
        simulated=True,
        model="llama-3.1-8b",
        strategy=strategy,
        world_size=world_size,
        seq_len=4096,
        per_device_batch=size,
        grad_accum=8 // size,
        tokens_per_step=4096 * 8 * world_size,
        precision="bf16",
        cell_id=f"{group}-{strategy}-{world_size}-{size}",
        run_id=f"{group}-{strategy}-{world_size}-{size}-{repeat}",
        repeat=repeat,
        device_name=name,
        device_memory_bytes=int(memory),
        power_cap_watts=power,
        started_at=f"2026-11-{20 + repeat % 2}T10:{repeat:02}:00+00:00",
        finished_at=f"2026-11-{20 + repeat % 2}T10:{repeat:02}:50+00:00",
        error_reason=None if rate else "CUDA out of memory. Tried to allocate 12.3 GiB",
        torch="2.13.0+rocm7.2" if is_amd else "2.13.0+cu130",
        collectives="rccl 2.26.6" if is_amd else "nccl 2.28.3",
        platform="rocm" if is_amd else "cuda",
        fingerprint=(("OS", "Ubuntu 24.04.2 LTS"), ("NUMA balancing", "1" if is_amd else "0"),
                     ("libhipblaslt" if is_amd else "libcublasLt", "1.0.0" if is_amd else "13.1.0")),
        **(of_run if rate else {}),
    )  # fmt: skip


def _failed(found: Row) -> Row:
    reason = "rank 3 died: Segmentation fault (a very long reason follows: " + "x" * 300 + ")"
    return replace(found, status="crash", tokens_per_sec=None, mean_step_time_sec=None, error_reason=reason)


def _many() -> Iterator[Row]:
    """2,000 cells of one run each."""
    dice = Random("many")
    for number in range(2_000):
        group = ("nvidia", "amd")[number % 2]
        yield replace(
            _row(group, list(SPEEDS)[number // 2 % 5], 8, 4, 1, dice.uniform(2e5, 3e5)),
            seq_len=128 + 8 * (number // 10),
            cell_id=f"cell-{number}",
            run_id=f"run-{number}",
        )
