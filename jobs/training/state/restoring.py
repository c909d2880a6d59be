"""Restores a training's state: all ranks load the newest generation that they can.

Rank 0 chooses it (``choosing``), what lies in other hosts' memory is brought (``bringing``), and each rank
loads its share (``loading``). If a generation can't be loaded, all ranks refuse it and try the next older
one. If its bytes are wrong, it is quarantined too.

Of a manifest in pieces, rank 0 reads what all ranks need, and each rank the pieces that it needs itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.manifest import (
    Cut,
    Manifest,
)
from checkpointing.generations.repository import Repository
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.peers import Seat
from checkpointing.stores.contract import StoreError
from jobs.training.data.mixture import check_left_out, continued, recorded_in
from jobs.training.ranks.gathering import gather
from jobs.training.state.bringing import bring_missing, drop_damaged, without_damaged
from jobs.training.state.choosing import Offer, Source, forgive, offered
from jobs.training.state.loading import load_shares, restore_random
from jobs.training.state.near_tiers import NearTiers
from jobs.training.state.pretrained import begin_with
from jobs.training.state.random_state import RandomState
from jobs.training.state.saved_run import EngineState, SavedRun, TrainingState, saved_run
from jobs.training.state.share_copies import Held
from jobs.training.state.sharing_memory import seat_of
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.sample_order import (
    FIRST_ORDER,
    NEWEST_ORDER,
    ORDERS,
    SampleOrder,
    known_order,
    newest_order,
    shuffle_of,
)
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where the training resumes: ``step`` steps are done, ``position`` samples are consumed.

    The position is one in ``sample_order`` and, of a mixture, in ``stretches``.
    ``is_own`` is False for a generation of another run; else ``term`` is that of the attempt that saved it,
    ``epoch_end`` the number of the epoch that ends there, if any, and ``metrics`` are those it has.
    ``warning`` is None if everything could be restored. ``is_evaluation_due``: the evaluation after the last
    step was interrupted. ``hand_over`` is what the generation's group left with it, as it is stored.
    """

    step: int
    position: int
    sample_order: SampleOrder
    generation: str | None
    trail: tuple[str, ...]
    is_own: bool
    term: int | None = None
    epoch_end: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    warning: str | None = None
    is_evaluation_due: bool = False
    stretches: RecordedStretches = ()
    hand_over: Mapping[str, Any] | None = None


def restore(
    task: Task,
    context: Context,
    engine: Engine,
    repository: Repository,
    origin: Repository | None,
    near: NearTiers,
) -> ResumePoint:
    """Fills the engine from the newest generation that can be loaded. Collective.

    A run without generations starts from ``origin``, or else from the task's weights, or else from fresh
    values. If what is near can't be read, it is not used; the store's saves are.
    """
    start = _restore_any(task, context, engine, repository, origin, near)
    if start.generation is None or shuffle_of(start.sample_order) != task.shuffle:
        # Only a run that starts from another run's generation can have another one.
        start = replace(start, sample_order=newest_order(task.shuffle))
    if task.mixture is None:
        return start
    try:
        stretches = continued(start.stretches, task.mixture, start.position)
        check_left_out(task.skips, task.skipped_in or start.stretches, stretches, start.position)
    except ValueError as error:
        if context.rank == 0 and start.is_own and start.generation:
            forgive(Source(repository=repository, term=task.term), start.generation)
        raise Unfit(f"data.sources: {error}") from None
    if start.stretches and stretches[-1] != start.stretches[-1]:
        change = f"from sample {start.position:,} on by the weights {stretches[-1][1]}"
        start = replace(start, trail=(*start.trail, f"{change}; before that, {start.stretches[-1][1]}"))
    return replace(start, stretches=stretches)


def _restore_any(
    task: Task,
    context: Context,
    engine: Engine,
    repository: Repository,
    origin: Repository | None,
    near: NearTiers,
) -> ResumePoint:
    saved, state = saved_run(task), EngineState(engine)
    start = restore_own(saved, context, state, repository, near)
    if start.generation is None and origin is not None:
        source = Source(repository=origin, term=None)
        warning = start.warning
        assert task.origin is not None
        start = _restore(replace(saved, resume=task.origin.what), context, state, source)
        start = replace(start, warning="; ".join(filter(None, [warning, start.warning])) or None)
    elif start.generation is None and task.weights:
        begin_with(Path(task.weights), task.recipe.model, engine)
        start = replace(start, trail=(*start.trail, f"begins with the weights in {task.weights}"))
    return start


def restore_own(
    saved: SavedRun,
    context: Context,
    state: TrainingState,
    repository: Repository,
    near: NearTiers,
) -> ResumePoint:
    """Fills ``state`` from the run's newest generation that can be loaded, if there is any. Collective."""
    tiers, held, problem = held_here(near, context)
    source = Source(
        repository=repository,
        term=saved.term,
        tiers=tiers,
        held=held,
        seats=gather(seat_of(context), Seat) if near.memory else None,
        memory=near.memory,
    )
    start = _restore(saved, context, state, source)
    return replace(start, warning="; ".join(filter(None, [problem, start.warning])) or None)


def held_here(near: NearTiers, context: Context) -> tuple[list[LocalTier], list[Held], str | None]:
    """Returns the tiers that can be read, what lies there, and why others can't."""
    tiers: list[LocalTier] = []
    held: dict[tuple[str, int], Held] = {}
    problems: list[str] = []
    for tier in near.fastest_first:
        try:
            for cut, part in tier.inventory():
                held.setdefault((cut.generation, part.rank), Held(tier=tier, cut=cut, part=part))
            tiers.append(tier)
        except StoreError as error:
            problems.append(f"rank {context.rank}: the saves on this node can't be read: {error}")
    return tiers, list(held.values()), "; ".join(problems) or None


def _restore(saved: SavedRun, context: Context, state: TrainingState, source: Source) -> ResumePoint:
    refused: dict[str, str] = {}
    is_half_loaded = False
    while True:
        offer = offered(saved, context, source, refused)
        if offer.problem is not None:
            raise offer.problem
        assert offer.decision is not None
        chosen, trail, is_own = offer.decision.chosen, offer.decision.trail, source.term is not None
        if chosen is None or offer.manifest is None:
            if is_half_loaded:
                _end_half_loaded(context, source)
            return ResumePoint(
                step=0,
                position=0,
                sample_order=NEWEST_ORDER,
                generation=None,
                trail=trail,
                is_own=is_own,
            )
        random, cut = RandomState(context.rank, context.device), offer.manifest.cut
        try:
            order, stretches = _order_of(cut), _stretches_of(cut)
            loaded = _bring_and_load(saved, context, state, source, offer, random)
        except Unfit:
            if context.rank == 0:
                forgive(source, chosen.name)
            raise
        if isinstance(loaded, Manifest):
            return ResumePoint(
                step=cut.step,
                position=cut.state["position"],
                generation=cut.generation,
                trail=trail,
                is_own=is_own,
                term=cut.term if is_own else None,
                epoch_end=cut.epoch_end if is_own else None,
                metrics=cut.metrics if is_own else {},
                warning=restore_random(context, random, loaded),
                is_evaluation_due=is_own and cut.state.get("is_evaluation_due", False),
                sample_order=order,
                stretches=stretches,
                hand_over=cut.state.get("hand_over"),
            )
        refused[chosen.name] = loaded
        is_half_loaded = True
        if context.rank == 0 and chosen.is_stored and source.term is not None:
            source.repository.quarantine(chosen.name, loaded, term=source.term)


def _end_half_loaded(context: Context, source: Source) -> NoReturn:
    """Ends an attempt that has nothing left to load: what was loaded half is in its state, so step 0 is the
    next attempt's. Collective.
    """
    if context.local_rank == 0:
        drop_damaged(source)
    # No rank ends before all hosts have done so.
    gather(True, bool)
    raise Corrupt(
        "what the hosts' memory holds is damaged or did not come whole, and nothing else was saved yet; what "
        "is damaged there is deleted, and the next attempt looks again"
    )


def _bring_and_load(
    saved: SavedRun, context: Context, state: TrainingState, source: Source, offer: Offer, random: RandomState
) -> Manifest | str:
    """As ``load_shares``; of a share that is damaged in a host's memory, another copy is tried."""
    while True:
        bring_missing(saved, context, source, offer)
        loaded = load_shares(context, state, source, offer, random)
        if isinstance(loaded, Manifest):
            return loaded
        others = without_damaged(saved, context, source, offer)
        if others is None:
            return loaded
        source, offer = others


def _order_of(cut: Cut) -> SampleOrder:
    """The order of samples that the position is one in. Raises ``Unfit`` for one of a later version."""
    if (order := known_order(found := cut.state.get("sample_order", FIRST_ORDER))) is not None:
        return order
    known = ", ".join(map(str, ORDERS))
    raise Unfit(
        f"{cut.generation}: its samples are in the order {found!r:.40}, but this version knows {known}; "
        "go on with the version that saved it"
    )


def _stretches_of(cut: Cut) -> RecordedStretches:
    """Those that a mixture was read in. Raises ``Unfit`` if this version can't know them."""
    try:
        return recorded_in(cut.state)
    except ValueError as error:
        raise Unfit(
            f"{cut.generation}: this version does not know the stretches of its mixture ({error}); "
            "go on with the version that saved it"
        ) from None
