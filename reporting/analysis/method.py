"""This module explains in words what the numbers mean and how to obtain them again. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from reporting.analysis.findings import Findings

DEFINITIONS = (
    (
        "Step",
        "A step is one optimizer step with all its micro-batches. It trains on dp × b × g × S tokens: dp is "
        "the number of devices with different data, b the sequences per device and micro-batch, g the "
        "micro-batches per step, S the tokens per sequence.",
    ),
    (
        "Step time",
        "A GPU records an event after each step, and the events are read after the window, so measuring "
        "never makes the device wait. On a CPU the host's clock measures the steps. A step takes as long as "
        "on its slowest rank. The window's time is the total of the slowest rank.",
    ),
    (
        "Tokens/s",
        "Tokens/s is the number of tokens in the window, divided by the time of the window. It is not a "
        "mean of rates. Tokens/s times the mean step time gives the tokens of a step.",
    ),
    (
        "Warm-up",
        "The steps before the window are not measured. Warm-up lasts for at least as many steps as the "
        "sweep says. It ends when none of five steps in a row moves the rolling median of five by 1 % and "
        "the newest steps show no trend, or after 50 steps. Peaks of memory are counted after it.",
    ),
    (
        "Scaling efficiency",
        "Scaling is weak: the work per device stays the same. The efficiency is the throughput per device, "
        "divided by that at the smallest number of devices in the same sweep. The smallest number itself "
        "has 100 %. Without it the efficiency is unknown.",
    ),
    (
        "MFU",
        "MFU is tokens/s per device × FLOPs per token, divided by the device's peak for the precision. FLOPs "
        "per token are 6 × parameters in matrix products + 12 × layers × attention width × S, for forward "
        "and backward pass. Attention is not halved for causality (palm_noncausal_v1). A device without a "
        "known dense peak has no MFU. HFU adds the FLOPs that activation checkpointing computes again: 2 × "
        "parameters in those products + 4 × layers × attention width × S.",
    ),
    (
        "Memory",
        "Memory is the largest amount that torch's allocator handed out on any rank after the warm-up, in GB "
        "of 1e9 bytes. The device's own memory stands beside it. A CPU has no device memory, so there it is "
        "unknown.",
    ),
    (
        "H2D",
        "H2D is the bytes copied from host to device per step, divided by the time of these copies. It is "
        "unknown if nothing is copied.",
    ),
    (
        "Loss",
        "The loss is the mean over the window. A run with a loss that is not finite is invalid_loss and has "
        "no numbers. With one seed all strategies must give the same loss. If a fast cell has another loss, "
        "do not trust its speed.",
    ),
    (
        "Repeats",
        "The unit of repetition is the run, not the step. A cell shows the median over its runs, a 95 % "
        "interval, the coefficient of variation (CV) over its runs, and n, their number.",
    ),
    (
        "Comparison",
        "The ratio is the median of the other side, divided by that of the baseline. Its 95 % interval is a "
        "bootstrap over runs (10,000 draws, fixed seed). It is wider where a side has four runs, or more "
        "noise than the other. p is the exact Mann-Whitney p, adjusted for the number of comparisons "
        "(Benjamini-Hochberg). Cliff's delta goes from -1 (the other side is always slower) to 1 (always "
        "faster).",
    ),
    (
        "Verdict",
        "The interval decides. The verdict is equivalent if the whole interval lies within the threshold of "
        "1 (2 %). Else it is faster or slower if the interval does not contain 1. "
        "Else it is inconclusive. With fewer than four runs on a side it is too few repeats. If a side has "
        "no numbers, the verdict says why, such as oom.",
    ),
    (
        "Outliers",
        "Outliers are steps more than three interquartile ranges outside the quartiles. They are counted "
        "and shown, never removed. A cell is unstable with more than 5 % outliers, or if its runs' medians "
        "are more than 10 % apart.",
    ),
    (
        "Goodput",
        "Goodput is the time of training steps that were not lost later, divided by the wall time since the "
        "first start. The rest is shown by its reason: detecting a failure, waiting for devices, starting, "
        "restoring, repeating lost steps, stalls, waiting for data, evaluation, saving, idling.",
    ),
    (
        "Simulated, imported",
        "A simulated group has the name of a vendor, but ran on CPUs of this cluster. It shows that things "
        "work, not how fast they are. Imported rows come from result files of other software; Longhaul "
        "did not measure them.",
    ),
)

_MOST_SWEEPS = 5


@dataclass(frozen=True, slots=True)
class Command:
    purpose: str
    line: str


def how_to_repeat(findings: Findings) -> tuple[Command, ...]:
    """Returns the commands in the order in which they are typed."""
    return tuple(_commands(findings))


def _commands(findings: Findings) -> Iterator[Command]:
    store = quote(findings.store)
    place = quote(f"{findings.store}/reports/{findings.name}")
    yield Command("Fetch this report and the specs of its sweeps", f"longhaul pull {place} copy")
    yield Command(
        "Make the report again; the same results give the same bytes", f"longhaul report --store {store}"
    )
    for commit in sorted({row.commit for row in findings.rows if row.commit})[:_MOST_SWEEPS]:
        yield Command("Get the code that was measured", f"git checkout {quote(commit)}")
    sweeps = sorted({row.sweep for row in findings.rows if row.sweep and not row.imported})[:_MOST_SWEEPS]
    for sweep in sweeps:
        spec = quote(f"copy/specs/{sweep}.yaml")
        yield Command(f"Measure {sweep} again", f"longhaul sweep {spec} --store again")
    if sweeps:
        yield Command("Compare the new results with these", f"longhaul compare {store} again")
