"""Formats a sweep's plan as plain text, with the columns that identify a cell. Pure.

A column with the same value in every row is printed once, above the table.
"""

from collections.abc import Iterable, Sequence

from cluster.placement import Placed
from jobs.commandline.text_table import TextColumn, as_text
from jobs.sweeps.grid import MAX, Cell
from jobs.sweeps.plan import Plan
from jobs.training.task.job import Recipe
from reporting.analysis.formatting import counted
from reporting.results.settings import settings_text

NOTHING = "-"


def plan_table(plans: Sequence[Plan], num_repeats: int) -> str:
    columns = [
        *cell_columns(
            [plan.cell for plan in plans],
            [plan.is_simulated for plan in plans],
            [_forecast_batch(plan) for plan in plans],
        ),
        number_column("GB/worker", (f"{plan.predicted_memory_bytes / 1e9:.2f}" for plan in plans)),
        *_host_memory(plans),
        number_column("~s/run", (or_nothing(plan.predicted_s, "{:.0f}") for plan in plans)),
        TextColumn(title="placement", texts=tuple(map(placement_text, plans))),
    ]
    refused = sum(1 for plan in plans if plan.refused)
    total = " x ".join([counted(len(plans), "cell"), counted(num_repeats, "repeat")])
    runs = counted(len(plans) * num_repeats, "run")
    warning = f"; {counted(refused, 'cell')} can't run" if refused else ""
    return f"{as_text(columns)}\n{total} = {runs}{_forecast(plans, num_repeats)}{warning}\n"


def _host_memory(plans: Sequence[Plan]) -> list[TextColumn]:
    """A column for what is offloaded, where there is any."""
    if all(plan.host_memory_bytes is None for plan in plans):
        return []
    texts = (or_nothing(plan.host_memory_bytes, "{:.2f}", 1e-9) for plan in plans)
    return [number_column("host GB/node", texts)]


def _forecast_batch(plan: Plan) -> tuple[str, str]:
    size = str(plan.recipe.micro_batch)
    return f"{MAX} (forecast {size})" if plan.cell.question else size, str(plan.recipe.grad_accum)


def _forecast(plans: Sequence[Plan], num_repeats: int) -> str:
    """The predicted time of the longest queue, since groups work in parallel."""
    queue_s: dict[str, float] = {}
    for plan in plans:
        if plan.predicted_s is not None and not plan.refused:
            queue_s[plan.cell.group] = queue_s.get(plan.cell.group, 0.0) + plan.predicted_s * num_repeats
    longest_s = max(queue_s.values(), default=None)
    if longest_s is None:
        return ""
    return f", about {longest_s / 60:.0f} min" if longest_s >= 90 else f", about {longest_s:.0f} s"


def placement_text(plan: Plan) -> str:
    if plan.refused:
        return f"{plan.refused.status}: {plan.refused.reason}"
    assert isinstance(plan.answer, Placed)
    return f"{plan.answer.describe()}{_split(plan.answer, plan.cell.recipe)}"


def _split(placed: Placed, recipe: Recipe) -> str:
    """Ranks are numbered node by node, so copies lie within nodes if they divide each node's share."""
    within = recipe.shard_within
    is_split = within is not None and any(share.num_workers % within for share in placed.shares)
    return f" (sharded within {within}: over several nodes)" if is_split else ""


def cell_columns(
    cells: Sequence[Cell], are_simulated: Sequence[bool], batches: Sequence[tuple[str, str]]
) -> list[TextColumn]:
    """``batches`` are each cell's micro-batch and number of them, in words."""
    recipes = [cell.recipe for cell in cells]
    return [
        _folding("group", map(_group_text, cells, are_simulated)),
        _folding("model", (recipe.model.name for recipe in recipes)),
        TextColumn(title="strategy", texts=tuple(recipe.strategy for recipe in recipes)),
        TextColumn(
            title="devices", texts=tuple(str(recipe.world_size) for recipe in recipes), is_number=True
        ),
        _folding("seq", (str(recipe.seq_len) for recipe in recipes)),
        _folding("micro-batch", (size for size, _ in batches)),
        _folding("grad-accum", (number for _, number in batches)),
        _folding("precision", (recipe.precision for recipe in recipes)),
        *_settings(recipes),
    ]


def _settings(recipes: Sequence[Recipe]) -> list[TextColumn]:
    """A column for what is not the usual, where there is any."""
    texts = [settings_text(recipe) for recipe in recipes]
    return [_folding("settings", (text or NOTHING for text in texts))] if any(texts) else []


def _group_text(cell: Cell, is_simulated: bool) -> str:
    return f"{cell.group} (simulated)" if is_simulated else cell.group


def _folding(title: str, texts: Iterable[str]) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), may_fold=True)


def number_column(title: str, texts: Iterable[str]) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), is_number=True)


def or_nothing(value: float | None, pattern: str, scale: float = 1) -> str:
    return NOTHING if value is None else pattern.format(value * scale)
