"""Shows the list of a store's runs and sweeps as tables."""

from collections.abc import Iterator, Sequence

from cluster.inventory import LOCAL_GROUP
from jobs.commandline.text_table import TextColumn, as_text
from jobs.listing.reading import Listed, RunLine, SweepLine
from reporting.analysis.formatting import UNKNOWN, counted, short

_STATE_CHARS = 60
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def listed_text(listed: Listed, store: str, last: int) -> str:
    blocks = [*_runs(listed.runs, last), *_sweeps(listed.sweeps, last)]
    if not blocks:
        blocks = [f"{store}: no runs and no sweeps; `longhaul train` and `longhaul sweep` put some there\n"]
    if listed.is_cut:
        blocks.append("the store holds more than is read here; give each project a store of its own\n")
    return "\n".join(blocks).rstrip("\n")


def _runs(lines: Sequence[RunLine], last: int) -> Iterator[str]:
    if not lines:
        return
    shown = lines[:last]
    groups = tuple(short(line.group, _STATE_CHARS) if line.group else UNKNOWN for line in shown)
    yield as_text(
        [
            TextColumn(title="run", texts=tuple(line.run for line in shown)),
            TextColumn(title="state", texts=tuple(short(line.state, _STATE_CHARS) for line in shown)),
            *([] if {UNKNOWN, LOCAL_GROUP}.issuperset(groups) else [TextColumn(title="group", texts=groups)]),
            TextColumn(title="step", texts=tuple(_steps(line) for line in shown), is_number=True),
            TextColumn(title="last heard", texts=tuple(_ago(line.age_s) for line in shown), is_number=True),
            TextColumn(
                title="newest checkpoint",
                texts=tuple(
                    line.newest_generation or ("none" if line.is_readable else UNKNOWN) for line in shown
                ),
            ),
            TextColumn(
                title="saved", texts=tuple(_ago(line.newest_durable_age_s) for line in shown), is_number=True
            ),
        ]
    ) + _more(len(lines) - len(shown), "run")


def _sweeps(lines: Sequence[SweepLine], last: int) -> Iterator[str]:
    if not lines:
        return
    shown = lines[:last]
    yield as_text(
        [
            TextColumn(title="sweep", texts=tuple(line.sweep for line in shown)),
            TextColumn(title="state", texts=tuple(line.state for line in shown)),
            TextColumn(title="measured", texts=tuple(_measured(line) for line in shown), is_number=True),
            TextColumn(
                title="newest result", texts=tuple(_ago(line.age_s) for line in shown), is_number=True
            ),
        ]
    ) + _more(len(lines) - len(shown), "sweep")


def _steps(line: RunLine) -> str:
    if line.step is None:
        return UNKNOWN
    return f"{line.step}/{line.num_steps:.0f}" if line.num_steps else str(line.step)


def _measured(line: SweepLine) -> str:
    return f"{line.num_measured}/{UNKNOWN if line.num_runs is None else line.num_runs}"


def _ago(seconds: float | None) -> str:
    """Shows an age in the largest unit of which there are two, such as ``3 h ago``."""
    if seconds is None:
        return UNKNOWN
    for size, unit in _SPANS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _more(count: int, noun: str) -> str:
    return f"and {counted(count, f'older {noun}')}; --last N shows more\n" if count > 0 else ""
