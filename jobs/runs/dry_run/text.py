"""Shows the plan of a start to people."""

from collections.abc import Iterator
from itertools import groupby

from jobs.runs.dry_run.plan import RunPlan, SizePlan
from reporting.analysis.formatting import counted

_WIDTH = 12
_MOST_SIZES = 8


def plan_text(plan: RunPlan) -> str:
    lines = [f"{name:<{_WIDTH}}{value}" for name, value in _lines(plan)]
    return "\n".join([_title(plan), *lines, "nothing was started, and nothing was written"])


def _title(plan: RunPlan) -> str:
    spec = plan.spec
    recipe = spec.recipe()
    model = recipe.model
    return (
        f"{plan.run}: {model.name} ({model.num_parameters:,} parameters) with {spec.strategy} in "
        f"{spec.precision}, {counted(plan.num_steps, 'step')} of {recipe.tokens_per_step:,} tokens"
    )


def _lines(plan: RunPlan) -> Iterator[tuple[str, str]]:
    if plan.finished_step is not None:
        yield "begins", f"not at all: it is finished at step {plan.finished_step}"
    else:
        yield "begins", plan.begins
    yield "on", plan.source
    left = 0 if plan.finished_step is not None else plan.num_steps - (plan.begins_at_step or 0)
    by_group = [tuple(sizes) for _, sizes in groupby(plan.sizes, key=lambda size: size.group)]
    if len(by_group) > 1:
        yield "in turn", ", then ".join(sizes[0].group for sizes in by_group)
    for sizes in by_group:
        for size in sizes[-_MOST_SIZES:]:
            yield from _size_lines(size, left)
    yield from _save_lines(plan)


def _size_lines(size: SizePlan, num_steps: int) -> Iterator[tuple[str, str]]:
    if size.refused or size.fit is None:
        yield "placement", f"none: {size.refused}"
        return
    yield "placement", str(size.placement)
    need = f"{size.fit.predicted.total / 1e9:.2f} GB per worker"
    limit = size.fit.limit_bytes
    if limit is None:
        yield "memory", f"about {need}; how much is there is not known"
    else:
        verdict = (
            ": it will not fit" if size.is_too_large else "" if size.fit.is_within else ": it may not fit"
        )
        yield "memory", f"about {need}, {limit / 1e9:.2f} GB are there{verdict}"
    if size.step_s is not None and num_steps > 0:
        yield "time", f"about {_span(num_steps * size.step_s)} of training, guessed"


def _save_lines(plan: RunPlan) -> Iterator[tuple[str, str]]:
    spec, space = plan.spec, plan.space
    if spec.saving() is None:
        yield "saves", "nothing: mode is benchmark"
        return
    checkpoint = spec.checkpoint
    every = (
        counted(checkpoint.every_steps, "step")
        if checkpoint.every_steps
        else f"{checkpoint.every_s or 0:,.0f} s"
    )
    yield "saves", f"every {every}, and at the end, in {plan.store}/runs/{plan.run}"
    grows = f", and one more {space.grows}" if space.grows else ""
    yield (
        "",
        (
            f"{_size(space.generation_bytes)} each, at most {space.num_kept} at a time: "
            f"{_size(space.store_bytes)}{grows}"
        ),
    )
    if space.local_folder:
        most = f", of at most {_size(space.local_max_bytes)}" if space.local_max_bytes else ""
        yield "", f"and on each node in {space.local_folder}: {_size(space.local_bytes or 0)}{most}"
    if spec.on_finish.export is not None:
        yield "at its end", f"the model is exported to {spec.on_finish.export}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:,.1f} MB"


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
