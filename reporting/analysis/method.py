"""This module explains in words what the numbers mean and how to obtain them again. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from reporting.analysis.findings import Findings

DEFINITIONS = (
    (
        "Step",
        "One optimizer step, with all of its micro-batches: on N devices, of which dp hold different data, "
        "it takes dp × b × g × S tokens (b sequences per device and micro-batch, g micro-batches, S tokens "
        "per sequence).",
    ),
    (
        "Step time",
        "Taken between step boundaries on the device's own clock, without stopping the device at each step; "
        "on a CPU by the host's clock. A step lasts as long as it lasts on its slowest rank, and the window "
        "as long as on the rank that needed longest in total.",
    ),
    (
        "Tokens/s",
        "All tokens of the window over the whole time of the window, not a mean of rates. Tokens/s times "
        "the mean step time is the tokens of a step.",
    ),
    (
        "Warm-up",
        "Not measured: at least as many steps as the sweep asks for, and more until the rolling median of "
        "five steps moves by less than 1 %, 50 at most. Memory peaks are counted from its end on.",
    ),
    (
        "Scaling efficiency",
        "Weak scaling: throughput per device over the throughput per device at the smallest number of "
        "devices that the same sweep measured, which is 100 % by definition. Unknown without such a "
        "baseline.",
    ),
    (
        "MFU",
        "Tokens/s per device × FLOPs per token over the peak of that device at that precision. FLOPs per "
        "token are 6 × parameters in matrix products + 12 × layers × attention width × S, forward and "
        "backward, attention not halved for causality (palm_noncausal_v1). A device whose dense datasheet "
        "peak isn't known has no MFU. HFU counts also what activation checkpointing computes again: 2 × "
        "parameters in those products + 4 × layers × attention width × S.",
    ),
    (
        "Memory",
        "The most that the allocator had handed out on any rank after the warm-up, in GB of 1e9 bytes, "
        "beside what the device has. The host's memory is never shown as a device's: a CPU has none.",
    ),
    (
        "H2D",
        "Bytes that were really copied from host to device per step over the time that these copies took. "
        "Unknown where nothing is copied.",
    ),
    (
        "Loss",
        "The mean over the window. A run whose loss isn't finite is invalid_loss and has no numbers. From "
        "one seed all strategies must agree: a fast cell with another loss isn't a fast cell.",
    ),
    (
        "Repeats",
        "The unit is the run, not the step: a cell shows the median over its runs, a 95 % interval, the "
        "coefficient of variation (CV) over runs, and n, how many runs these are.",
    ),
    (
        "Comparison",
        "The ratio of medians, other over baseline, with a 95 % bootstrap interval (runs are drawn, then "
        "steps within them; 10,000 draws from a fixed seed); the exact Mann-Whitney p, adjusted for the "
        "number of comparisons (Benjamini-Hochberg); and Cliff's delta, from -1 where the other is always "
        "slower to 1 where it is always faster.",
    ),
    (
        "Verdict",
        "The interval decides: equivalent if all of it lies within the practical threshold (2 % unless told "
        "otherwise), else faster or slower if it excludes 1, else inconclusive. With fewer than four runs "
        "on a side there are too few repeats for any verdict.",
    ),
    (
        "Outliers",
        "Steps more than three interquartile ranges outside the quartiles are counted and shown, and stay "
        "in. A cell is unstable if they are more than 5 % of its steps or if its runs lie more than 10 % "
        "apart.",
    ),
    (
        "Goodput",
        "Time of training steps that survived over the wall time since the first start. What isn't "
        "productive is told apart: detecting a failure, waiting for devices, starting, restoring, doing "
        "again what was lost, stalls, waiting for data, evaluation, saving, idling.",
    ),
    (
        "Simulated, imported",
        "Simulated groups call themselves another vendor's but ran on this cluster's CPUs: they show that "
        "things work, not how fast. Imported rows come from older result files: nobody here measured them.",
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
    yield Command("Fetch this report, with the specifications of its sweeps", f"longhaul pull {place} copy")
    yield Command("Make it again; the same results give the same bytes", f"longhaul report --store {store}")
    for commit in sorted({row.commit for row in findings.rows if row.commit})[:_MOST_SWEEPS]:
        yield Command("Get the code that was measured", f"git checkout {quote(commit)}")
    sweeps = sorted({row.sweep for row in findings.rows if row.sweep and not row.imported})[:_MOST_SWEEPS]
    for sweep in sweeps:
        spec = quote(f"copy/specs/{sweep}.yaml")
        yield Command(f"Measure {sweep} again", f"longhaul sweep {spec} --store again")
    if sweeps:
        yield Command("Hold the new results against these", f"longhaul compare {store} again")
