"""Loads a run's newest good generation into a fresh engine: rank 0 chooses it, all ranks load the same.

If a generation can't be loaded, all ranks refuse it and try the next older one. If its bytes are wrong, it is
quarantined too. All bytes are compared with their digests before they are used.

Of a manifest in pieces, rank 0 reads what all ranks need, and each rank the pieces that it needs itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.loading import fill
from checkpointing.format.manifest import (
    MOST_MANIFEST_BYTES,
    Cut,
    FilePart,
    Manifest,
    manifest_of,
)
from checkpointing.format.reshard import plan
from checkpointing.generations.choice import Candidate, Decision, OnDisk, choose
from checkpointing.generations.manifests import InPieces, StoredManifest, opened, with_parts
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Load, Resumed
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.peers import Seat, missing, moves
from checkpointing.saving.snapshot import Landing, Piece
from checkpointing.stores.contract import StoreError, Unavailable
from cluster.probe.gloo_store import GlooGroup
from cluster.probe.meeting import prove
from jobs.training.data.mixture import check_left_out, continued, recorded_in
from jobs.training.health.problems import PeerFailed, Problem, error_of, problem_of
from jobs.training.ranks.gathering import bytes_from_rank_0, from_rank_0, gather
from jobs.training.state.near_tiers import NearTiers
from jobs.training.state.pretrained import begin_with
from jobs.training.state.random_state import RandomState, digest_of_next_numbers
from jobs.training.state.saved_run import EngineState, SavedRun, TrainingState, saved_run
from jobs.training.state.share_copies import Held, bring, receive
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

# A rank that brings or receives shares waits for another one for so long at most.
_BRINGING_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where the training resumes: ``step`` steps are done, ``position`` samples are consumed.

    The position is one in ``sample_order`` and, of a mixture, in ``stretches``.
    ``is_own`` is False for a generation of another run; else ``term`` is that of the attempt that saved it.
    ``warning`` is None if everything could be restored. ``is_evaluation_due``: the evaluation after the last
    step was interrupted.
    """

    step: int
    position: int
    sample_order: SampleOrder
    generation: str | None
    trail: tuple[str, ...]
    is_own: bool
    term: int | None = None
    warning: str | None = None
    is_evaluation_due: bool = False
    stretches: RecordedStretches = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A run whose generations can be loaded. ``term`` is this attempt's; None for another run."""

    repository: Repository
    term: int | None
    # What this node had when the restore began: a later look may fail, where others would wait. Of a share in
    # memory and on disk the first is used.
    tiers: Sequence[LocalTier] = ()
    held: Sequence[Held] = ()
    # Where hosts bring each other what lies in their memory: all ranks' seats, and this node's memory.
    seats: Sequence[Seat] | None = None
    memory: MemoryTier | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """A share that lies on a rank's node: ``rank`` saved it."""

    cut: Cut
    rank: int
    num_bytes: int
    is_in_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """Rank 0's choice for all ranks: a generation with its manifest, or a problem that ends the attempt.

    ``stored`` is the manifest as rank 0 has read it. ``held`` says of each rank whose shares of the
    generation are on its node, and of how many bytes, if all that ranks need of it is near; else it is None.
    """

    decision: Decision | None
    stored: StoredManifest | None = None
    manifest: Manifest | InPieces | None = None
    held: Sequence[Mapping[int, int]] | None = None
    problem: Exception | None = None


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
            _forgive(_Source(repository=repository, term=task.term), start.generation)
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
        source = _Source(repository=origin, term=None)
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
    tiers, held, problem = _held_here(near, context)
    source = _Source(
        repository=repository,
        term=saved.term,
        tiers=tiers,
        held=held,
        seats=gather(seat_of(context), Seat) if near.memory else None,
        memory=near.memory,
    )
    start = _restore(saved, context, state, source)
    return replace(start, warning="; ".join(filter(None, [problem, start.warning])) or None)


def _held_here(near: NearTiers, context: Context) -> tuple[list[LocalTier], list[Held], str | None]:
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


def _restore(saved: SavedRun, context: Context, state: TrainingState, source: _Source) -> ResumePoint:
    refused: dict[str, str] = {}
    while True:
        offer = _offer(saved, context, source, refused)
        if offer.problem is not None:
            raise offer.problem
        assert offer.decision is not None
        chosen, trail, is_own = offer.decision.chosen, offer.decision.trail, source.term is not None
        if chosen is None or offer.manifest is None:
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
            _bring(saved, context, source, offer)
            loaded = _load(context, state, source, offer, random)
        except Unfit:
            if context.rank == 0:
                _forgive(source, chosen.name)
            raise
        if isinstance(loaded, Manifest):
            return ResumePoint(
                step=cut.step,
                position=cut.state["position"],
                generation=cut.generation,
                trail=trail,
                is_own=is_own,
                term=cut.term if is_own else None,
                warning=_restore_random(context, random, loaded),
                is_evaluation_due=is_own and cut.state.get("is_evaluation_due", False),
                sample_order=order,
                stretches=stretches,
            )
        refused[chosen.name] = loaded
        if context.rank == 0 and chosen.is_stored and source.term is not None:
            source.repository.quarantine(chosen.name, loaded, term=source.term)


def _forgive(source: _Source, name: str) -> None:
    """Nothing is wrong with the generation. Else a few starts that are refused would make poison of it."""
    # Rank 0 raises nothing else here: the others would wait for it.
    with suppress(Exception):
        if source.term is not None:
            source.repository.append(Resumed(name=name), term=source.term)


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


def _offer(saved: SavedRun, context: Context, source: _Source, refused: dict[str, str]) -> _Offer:
    """Rank 0's choice, made from the log and from what all ranks have near them. Collective."""
    own = [
        _Told(one.cut, one.part.rank, one.part.num_bytes, one.tier is source.memory) for one in source.held
    ]
    by_rank = gather(own, list[_Told])
    near = _complete_near(by_rank, saved, are_brought=source.seats is not None)
    offer = _shared_offer(_decide(saved, source, refused, near) if context.rank == 0 else None)
    if offer.decision is None or offer.decision.chosen is None:
        return offer
    name = offer.decision.chosen.name
    if any(one.name == name for one in near):
        offer = replace(offer, held=[_sizes_of(name, told) for told in by_rank])
    if offer.manifest is not None:
        return offer
    try:
        return replace(offer, manifest=_manifest_from_parts(context, source, name, offer.held or ()))
    except Corrupt as error:
        refused[name] = str(error)
        return _offer(saved, context, source, refused)


def _sizes_of(generation: str, told: Sequence[_Told]) -> dict[int, int]:
    return {one.rank: one.num_bytes for one in told if one.cut.generation == generation}


def _shared_offer(own: _Offer | None) -> _Offer:
    """Sends rank 0's offer to all ranks. Collective."""
    decision_and_problem: tuple[Decision | None, Problem | None] = (None, None)
    if own is not None:
        decision_and_problem = (own.decision, problem_of(own.problem) if own.problem else None)
    decision, problem = from_rank_0(decision_and_problem, tuple[Decision | None, Problem | None])
    stored = own.stored if own and own.stored else StoredManifest(data=b"")
    data, tensors = (
        bytes_from_rank_0(one, most_bytes=MOST_MANIFEST_BYTES) for one in (stored.data, stored.tensors)
    )
    if own is not None:
        return own
    return _Offer(
        decision=decision,
        manifest=opened(StoredManifest(data=data, tensors=tensors)) if data else None,
        problem=error_of(problem) if problem else None,
    )


def _decide(saved: SavedRun, source: _Source, refused: dict[str, str], on_disk: Sequence[OnDisk]) -> _Offer:
    repository = source.repository
    try:
        view = repository.refresh()
        if source.term is None:
            repository.refuse_as_origin(saved.resume)
        decision = choose(
            view,
            on_disk,
            what=saved.resume,
            policy=saved.retention,
            refused=refused,
            spoilt=saved.spoilt,
        )
        if source.term is not None:
            for name in decision.poison:
                repository.quarantine(name, "loading it ended in crashes", term=source.term, is_poison=True)
        chosen = decision.chosen
        if chosen is None:
            return _Offer(decision=decision)
        if source.term is not None:
            # Noted before loading: if loading crashes, the next attempt must know which generation it was.
            repository.append(Load(name=chosen.name), term=source.term)
        stored, manifest = _stored_manifest(repository, chosen, on_disk) or (None, None)
        return _Offer(decision=decision, stored=stored, manifest=manifest)
    except Corrupt as error:
        assert chosen is not None
        refused[chosen.name] = str(error)
        if source.term is not None:
            repository.quarantine(chosen.name, str(error), term=source.term)
        return _decide(saved, source, refused, on_disk)
    except Unfit as error:
        assert chosen is not None
        _forgive(source, chosen.name)
        return _Offer(decision=None, problem=error)
    except Exception as error:
        return _Offer(decision=None, problem=error)


def _stored_manifest(
    repository: Repository, chosen: Candidate, on_disk: Sequence[OnDisk]
) -> tuple[StoredManifest, Manifest | InPieces] | None:
    """The store's manifest; None if it can't be had and the parts on the nodes' disks must replace it."""
    found = repository.view.generation(chosen.name)
    if found is None:
        return None
    try:
        stored = repository.stored_manifest(found)
        return stored, opened(stored)
    except (Corrupt, Unavailable):
        if any(one.name == chosen.name for one in on_disk):
            return None
        raise


def _manifest_from_parts(
    context: Context, source: _Source, generation: str, held: Sequence[Mapping[int, int]]
) -> Manifest:
    """Builds the manifest of a generation from all ranks' parts, if the store has none. Collective."""
    # Each part is told once, by the first rank that has it.
    told_before = {rank for of_rank in held[: context.rank] for rank in of_rank}
    own = [(one.cut, one.part) for one in source.held if one.cut.generation == generation]
    own = [share for share in own if share[1].rank not in told_before]
    by_rank = gather(own, list[tuple[Cut, FilePart]], most_bytes=MOST_MANIFEST_BYTES)
    found = {part.rank: (cut, part) for of_rank in by_rank for cut, part in of_rank}
    cut = found[min(found)][0]
    return manifest_of(cut, [part for _, part in found.values()])


def _complete_near(by_rank: Sequence[Sequence[_Told]], saved: SavedRun, *, are_brought: bool) -> list[OnDisk]:
    """The generations of which each rank finds all files that it needs on its own node; or, if they are
    brought, on any node.
    """
    cuts = {one.cut.generation: one.cut for told in by_rank for one in told}
    usable = []
    for name, cut in cuts.items():
        seen = [frozenset(_sizes_of(name, told)) for told in by_rank]
        if are_brought:
            seen = [frozenset[int]().union(*seen)] * len(by_rank)
        needed = _needed(saved, cut, len(by_rank))
        if cut.run == saved.run and all(need <= has for need, has in {*zip(needed, seen, strict=True)}):
            there = [one for told in by_rank for one in told if one.cut.generation == name]
            in_memory = {one.rank for one in there if one.is_in_memory}
            usable.append(
                OnDisk(
                    name=name,
                    step=cut.step,
                    term=cut.term,
                    number=cut.number,
                    is_in_memory=all(need <= in_memory for need in {*needed}),
                )
            )
    return usable


def _needed(saved: SavedRun, cut: Cut, world_size: int) -> list[frozenset[int]]:
    """Whose files each rank loads: where each loads just what it saved, its own alone; else all."""
    if _loads_what_it_saved(saved, cut):
        return [frozenset([rank]) for rank in range(world_size)]
    return [frozenset(range(cut.world_size))] * world_size


def _loads_what_it_saved(saved: SavedRun, cut: Cut) -> bool:
    """Whether a rank's file has all that this rank loads: not if several copies shared the saving."""
    is_same = (cut.strategy, cut.world_size) == (saved.strategy, saved.world_size)
    had_one_copy = cut.state.get("ranks_per_copy", cut.world_size) == cut.world_size
    return is_same and had_one_copy and saved.ranks_per_copy == saved.world_size


def _bring(saved: SavedRun, context: Context, source: _Source, offer: _Offer) -> None:
    """Brings what lies in other hosts' memory to where it is loaded. What fails to come is found missing when
    it is loaded. Collective.
    """
    if source.seats is None or source.memory is None or offer.held is None:
        return
    assert offer.manifest is not None
    cut = offer.manifest.cut
    needed = _needed(saved, cut, context.world_size)
    sizes = {share: size for held in offer.held for share, size in held.items()}
    coming = [sizes[share] for share in missing(context.node, source.seats, offer.held, needed)]
    # Without room on one host the next tier is read by all.
    if not all(gather(_has_room(source.memory, coming), bool)):
        return
    # After that: if each of very many ranks lacks all shares, they are very many moves.
    if not (plan := moves(source.seats, offer.held, needed)):
        return
    group = GlooGroup(context.key, _BRINGING_S)
    prove(context.key, group)
    for move in plan:
        if context.rank == move.source:
            own = [one for one in source.held if one.cut.generation == cut.generation]
            share = next(one for one in own if one.part.rank == move.share)
            bring(group, share, to=move.target)
        elif context.rank == move.target:
            receive(group, {move.source: move.share}, source.memory)
    # Nobody may be in the group any more when it is closed.
    gather(True, bool)
    group.close()


def _has_room(memory: MemoryTier, coming: Sequence[int]) -> bool:
    try:
        # Each is compared before it is kept.
        return not coming or sum(coming) + max(coming) <= memory.free_bytes()
    except OSError:
        return False


def _load(
    context: Context, state: TrainingState, source: _Source, offer: _Offer, random: RandomState
) -> Manifest | str:
    """Loads every rank's share. Returns what this rank has read of the manifest, or else why not all could
    load, the same text on all ranks. Collective.
    """
    assert offer.manifest is not None
    found = offer.manifest
    head = found.heading(context.rank) if isinstance(found, InPieces) else found
    landing = _landing(state, _saved_pieces(random, head), head)
    manifest: Manifest | Exception = head
    if isinstance(found, InPieces):
        manifest = _with_parts(context, source, found, landing, offer.held)
    outcome = _fill(landing, source, manifest)
    by_rank = gather(problem_of(outcome) if outcome else None, Problem | None)
    errors = {rank: error_of(problem) for rank, problem in enumerate(by_rank) if problem}
    for rank, error in errors.items():
        if isinstance(error, PeerFailed):
            # Of a type that nobody thought of: a device may have failed. So only such ranks say why, and
            # only their nodes are blamed.
            if outcome and isinstance(errors[context.rank], PeerFailed):
                raise outcome
            raise PeerFailed(f"connection closed by rank {rank}: it could not load, and says why itself")
        if not isinstance(error, Corrupt):
            raise error
    if errors:
        rank, error = next(iter(errors.items()))
        return f"rank {rank}: {error}"
    assert isinstance(manifest, Manifest)
    state.restored(manifest)
    return manifest


def _landing(state: TrainingState, random: Sequence[Piece], head: Manifest) -> Landing | Exception:
    try:
        return Landing([*state.targets(head), *random])
    except Exception as error:
        # Whatever it is, the other ranks would wait for this one.
        return error


def _with_parts(
    context: Context,
    source: _Source,
    found: InPieces,
    landing: Landing | Exception,
    held: Sequence[Mapping[int, int]] | None,
) -> Manifest | Exception:
    """Reads what this rank needs of the manifest. If one rank can't, the parts that lie near replace it, if
    they are there. Collective.
    """
    manifest: Manifest | Exception = found.heading(context.rank)
    try:
        if isinstance(landing, Landing):
            place = source.repository.place(found.cut.generation)
            manifest = with_parts(place, found, landing.wants, context.rank)
    except Exception as error:
        # Whatever it is, the other ranks would wait for this one.
        manifest = error
    if not any(gather(isinstance(manifest, Exception), bool)) or held is None:
        return manifest
    try:
        return _manifest_from_parts(context, source, found.cut.generation, held)
    except Corrupt as error:
        return error


def _fill(landing: Landing | Exception, source: _Source, manifest: Manifest | Exception) -> Exception | None:
    if isinstance(landing, Exception):
        return landing
    if isinstance(manifest, Exception):
        return manifest
    name = manifest.cut.generation
    try:
        places = [tier.place(name) for tier in source.tiers]
        places.append(source.repository.place(name))
        fill(manifest, plan(manifest, landing.wants), landing.buffers, places)
        landing.settle()
    except Exception as error:
        return error
    return None


def _saved_pieces(random: RandomState, manifest: Manifest) -> list[Piece]:
    """The saved random states of this rank. Empty if the save had fewer ranks: this rank keeps its own."""
    tensors = manifest.tensors
    return [piece for piece in random.pieces() if piece.name in tensors]


def _restore_random(context: Context, random: RandomState, manifest: Manifest) -> str | None:
    """Restores the random state; returns a warning if the next numbers differ from the recorded ones.

    Call it last, since setting up draws random numbers too.
    """
    if not _saved_pieces(random, manifest):
        return None
    random.restore()
    own = next(part for part in manifest.parts if part.rank == context.rank)
    recorded, found = own.state["canary"], digest_of_next_numbers(context.device)
    if found == recorded:
        return None
    return f"rank {context.rank}: random numbers go on otherwise than recorded; other versions of libraries?"
