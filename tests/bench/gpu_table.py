"""The table of ``make bench-gpu`` and the goals that it is held to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

LEAST_MFU, LEAST_FP8_SPEEDUP, MOST_OF_A_COPY = 0.5, 1.2, 1.1
# Names of ways. Those of all compiled ways begin with ``COMPILED``.
THEIRS, EAGER, COMPILED = "transformers", "eager", "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to train, measured. MFU and HFU are fractions; None where the device's peak is unknown.

    ``speedup`` is over transformers' model, of windows that were measured within seconds of each other.
    ``refused`` is why the way can't be had; then there are no numbers.
    """

    name: str
    tokens_per_s: float = 0.0
    speedup: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_bytes: int | None = None
    kernel: str = ""
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``value`` None: nothing was measured that could be judged. Then the goal is missed."""

    what: str
    value: float | None
    bound: float
    is_upper: bool = False

    @property
    def is_met(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bound if self.is_upper else self.value >= self.bound

    def line(self) -> str:
        word = "met" if self.is_met else "missed"
        seen = "nothing to judge" if self.value is None else f"{self.value:.3f}"
        return f"{self.what:42} {seen} (bound {'<=' if self.is_upper else '>='} {self.bound:.2f}): {word}"


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown, which `docs/figures.md` can take as they are."""
    head = ["way", "tokens/s", "of transformers'", "MFU", "HFU", "peak memory", "attention"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_cells(row)) + " |" for row in rows]


def _cells(row: Row) -> list[str]:
    if row.refused:
        return [row.name, f"can't be had: {row.refused}", *["–"] * 5]
    return [
        row.name,
        f"{row.tokens_per_s:,.0f}",
        "–" if row.speedup is None else f"{row.speedup:.3f}x",
        _percent(row.mfu),
        _percent(row.hfu),
        "–" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.1f} GB",
        row.kernel or "–",
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def goals(rows: Sequence[Row], saving_ratio: float | None, fp8_speedup: float | None) -> list[Goal]:
    """The best of the compiled ways in bf16 counts, and the faster of both kinds of fp8."""
    compiled = [row.mfu for row in rows if row.name.startswith(COMPILED) and "fp8" not in row.name]
    best = max((mfu for mfu in compiled if mfu is not None), default=None)
    return [
        Goal(what="MFU in bf16, compiled", value=best, bound=LEAST_MFU),
        Goal(what="fp8 over bf16, both compiled alike", value=fp8_speedup, bound=LEAST_FP8_SPEEDUP),
        Goal(
            what="a save blocks, of a plain copy to the host",
            value=saving_ratio,
            bound=MOST_OF_A_COPY,
            is_upper=True,
        ),
    ]


def speedup(taken: Mapping[str, Sequence[float]], name: str, over: str) -> float | None:
    """Of the windows of each turn; None if one of both has none."""
    ours, theirs = taken.get(name), taken.get(over)
    if not ours or not theirs:
        return None
    return median(one / other for one, other in zip(theirs, ours, strict=True))
