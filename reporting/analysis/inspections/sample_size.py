"""These inspections ask whether there are enough runs, and whether they were measured here, on real devices.
Pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import counted
from reporting.analysis.inspections.seen import Seen, is_imported, name_of, ok_rows

FEWEST_REPEATS = 4


def repeats(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Checks cells with numbers. Imported cells are left out, because whether they were repeated can't be
    changed.
    """
    few: Counter[tuple[str, int]] = Counter()
    for cell in cells:
        num_runs = len(ok_rows(cell))
        if num_runs >= FEWEST_REPEATS:
            yield Seen(level="ok", subject=name_of(cell), value=num_runs)
        elif num_runs and not is_imported(cell):
            few[cell.group, num_runs] += 1
    for (group, num_runs), num_cells in few.items():
        yield Seen(
            level="warning",
            subject=group,
            found=f"{counted(num_cells, 'cell')} with {counted(num_runs, 'ok run')}",
            advice=f"Below {FEWEST_REPEATS} no comparison can be decided: set repeats to 5.",
            badness=FEWEST_REPEATS - num_runs,
        )


def origins(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Warns of simulated cells, which say nothing about real devices, and of imported cells, which other
    tools measured.
    """
    for cell in cells:
        if not {"simulated", "imported"} & set(cell.flags):
            yield Seen(level="ok", subject=name_of(cell))
    for what, those in (
        ("simulated devices", [cell for cell in cells if not cell.is_emulated]),
        ("simulated fp8", [cell for cell in cells if cell.is_emulated]),
    ):
        for group, num_cells in _flagged(those, "simulated"):
            yield Seen(
                level="warning",
                subject=group,
                found=f"{counted(num_cells, 'cell')} of {what}",
                advice="Their figures say nothing of real ones.",
            )
    for group, num_cells in _flagged(cells, "imported"):
        yield Seen(
            level="warning",
            subject=group,
            found=f"{counted(num_cells, 'cell')} imported: measured by other tools, in other ways",
            advice="Read them beside ours, never as repeats of ours; measure again what matters.",
        )
    yield from _doubts(cells)


def _doubts(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    texts = Counter((cell.group, text) for cell in cells for row in cell.rows for text in row.warnings)
    for (group, text), num_runs in texts.items():
        yield Seen(
            level="warning",
            subject=group,
            found=f"{text} ({counted(num_runs, 'run')})",
            advice="See where these numbers come from before using them.",
        )


def _flagged(cells: Sequence[CellSummary], flag: str) -> Iterator[tuple[str, int]]:
    yield from Counter(cell.group for cell in cells if flag in cell.flags).items()
