"""Formats what ``--best`` found, and what it is going to measure, as plain text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.commandline.text_table import TextColumn, as_text
from jobs.sweeps.grid import MAX, Cell
from jobs.sweeps.search.decision import Cost, Decision, Ranked
from jobs.sweeps.search.halving import Round
from jobs.sweeps.search.questions import Question
from jobs.sweeps.tables import NOTHING, number_column, or_nothing
from reporting.analysis.formatting import counted
from reporting.results.records import RunRecord
from reporting.results.settings import settings_text

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec


def best_table(decisions: Sequence[Decision], cost: Cost) -> str:
    """One line per question, then what failed, and what the whole grid would have cost."""
    questions = [one.question for one in decisions]
    firsts = [one.ranked[0] if one.ranked else None for one in decisions]
    seconds = [one.ranked[1] if len(one.ranked) > 1 else None for one in decisions]
    columns = [
        *_asked(questions),
        TextColumn(title="best setting", texts=tuple(map(_best, decisions))),
        number_column(
            "tokens/s", (or_nothing(one.tokens_per_sec.median if one else None, "{:,.0f}") for one in firsts)
        ),
        TextColumn(title="95 % interval", texts=tuple(map(_interval, firsts))),
        TextColumn(title="second", texts=tuple(map(_second, seconds))),
    ]
    is_whole = all(one.is_decided for one in decisions)
    return "\n".join([as_text(columns).rstrip("\n"), *_failures(decisions), "", _cost(cost, is_whole), ""])


def rounds_text(spec: "SweepSpec", questions: Sequence[tuple[Question, Sequence[Round]]]) -> str:
    """What a dry run says of the search, one line per question."""
    lines = ["", f"--best looks for the best {_listed(spec.best.over)} of each question:"]
    runs = steps = grid_runs = grid_steps = 0
    for question, rounds in questions:
        name = " ".join(f"{axis} {value}" for axis, value in question.asked if value != "none")
        lines.append(f"  {name}: " + ", then ".join(map(_round, rounds)))
        runs += sum(one.num_runs for one in rounds)
        steps += sum(one.num_runs * (one.window.steps + one.window.warmup) for one in rounds)
        whole = rounds[0].num_cells * spec.repeats
        grid_runs += whole
        grid_steps += whole * (spec.measure.steps + spec.measure.warmup)
    lines.append(
        f"about {counted(runs, 'run')} and {counted(steps, 'step')}, "
        f"instead of {grid_runs:,} and {grid_steps:,} for all cells"
    )
    return "\n".join(lines) + "\n"


def setting_text(cell: Cell, micro_batch: int) -> str:
    """A setting in words, as ``fsdp, micro-batch 8 (max), chunked loss``."""
    size = f"micro-batch {micro_batch}{f' ({MAX})' if cell.question else ''}"
    return ", ".join(filter(None, [cell.recipe.strategy, size, settings_text(cell.recipe)]))


def _asked(questions: Sequence[Question]) -> list[TextColumn]:
    """A column for each axis that asks; one with a single value stands above the table."""
    axes = dict.fromkeys(axis for question in questions for axis, _ in question.asked)
    texts = {axis: tuple(str(dict(question.asked)[axis]) for question in questions) for axis in axes}
    shown = {axis: values for axis, values in texts.items() if axis in _ALWAYS or len(set(values)) > 1}
    sequences = tuple(str(question.sequences_per_step) for question in questions)
    return [
        *(TextColumn(title=_TITLES.get(axis, axis), texts=shown[axis], may_fold=True) for axis in shown),
        TextColumn(title="sequences/step", texts=sequences, is_number=True, may_fold=True),
    ]


_TITLES = {"world_size": "devices", "seq_len": "seq"}
_ALWAYS = ("group", "model", "world_size", "seq_len", "precision")


def _best(decision: Decision) -> str:
    if not decision.ranked:
        return "none: no setting could be measured" if decision.is_decided else "not decided yet"
    best = decision.ranked[0]
    text = setting_text(best.cell, best.records[0].per_device_batch)
    return text if decision.is_decided else f"{text} (not decided yet)"


def _interval(best: Ranked | None) -> str:
    if best is None or best.tokens_per_sec.low is None or best.tokens_per_sec.high is None:
        return NOTHING
    return f"{best.tokens_per_sec.low:,.0f} to {best.tokens_per_sec.high:,.0f}"


def _second(second: Ranked | None) -> str:
    if second is None or second.contrast is None or second.contrast.ratio is None:
        return NOTHING
    text = setting_text(second.cell, second.records[0].per_device_batch)
    verdict = "tied" if second.is_tied else second.contrast.verdict
    return f"{second.contrast.ratio:.2f}x, {verdict}: {text}"


def _failures(decisions: Sequence[Decision]) -> list[str]:
    lines = []
    for decision in decisions:
        lines += [
            f"{_place(decision)}: {_failed_setting(record)}: {record.status}: {record.error.reason}"
            for record in decision.failed
            if record.error
        ]
        if decision.excluded:
            lines.append(f"{_place(decision)}: {counted(len(decision.excluded), 'cell')} can't run")
    return ["", *lines] if lines else []


def _failed_setting(record: RunRecord) -> str:
    size = f"micro-batch {MAX if record.batch_search else record.per_device_batch}"
    return ", ".join(filter(None, [record.strategy, size, settings_text(record)]))


def _place(decision: Decision) -> str:
    return " ".join(str(value) for axis, value in decision.question.asked if axis in _ALWAYS)


def _cost(cost: Cost, is_whole: bool) -> str:
    done = (
        f"{counted(cost.num_cells, 'cell')} in {counted(cost.num_runs, 'run')} and {cost.num_steps:,} steps"
    )
    if not cost.grid_steps or not is_whole:
        return done
    saved = 1 - cost.num_steps / cost.grid_steps
    return (
        f"{done}; all of them would be {cost.grid_runs:,} and about {cost.grid_steps:,} ({saved:.0%} saved)"
    )


def _round(one: Round) -> str:
    repeats = f" x {one.repeats}" if one.repeats > 1 else ""
    return f"{counted(one.num_cells, 'cell')} for {counted(one.window.steps, 'step')}{repeats}"


def _listed(axes: Sequence[str]) -> str:
    return ", ".join(axes)
