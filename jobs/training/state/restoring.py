"""Loads a run's newest good generation into a fresh engine: rank 0 chooses it, all ranks load the same.

If a generation can't be loaded, all ranks refuse it and try the next older one. If its bytes are wrong, it is
quarantined too. All bytes are compared with their digests before they are used.

Of a manifest in pieces, rank 0 reads what all ranks need, and each rank the pieces that it needs itself.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.loading import GenerationPlace, fill
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
from checkpointing.saving.snapshot import Landing, Piece
from checkpointing.stores.contract import StoreError, Unavailable
from jobs.training.data.mixture import check_left_out, continued, recorded_in
from jobs.training.health.problems import PeerFailed, Problem, error_of, problem_of
from jobs.training.ranks.gathering import bytes_from_rank_0, from_rank_0, gather
from jobs.training.state.pretrained import begin_with
from jobs.training.state.random_state import RandomState, digest_of_next_numbers
from jobs.training.state.saved_run import EngineState, SavedRun, TrainingState, saved_run
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
    disk: LocalTier | None
    term: int | None
    # What this node's disk had when the restore began: a later look may fail, where others would wait.
    shares: Sequence[tuple[Cut, FilePart]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """Rank 0's choice for all ranks: a generation with its manifest, or a problem that ends the attempt.

    ``stored`` is the manifest as rank 0 has read it. ``shares`` are those of the generation on this node's
    disk, if all nodes have what they need of it; else None.
    """

    decision: Decision | None
    stored: StoredManifest | None = None
    manifest: Manifest | InPieces | None = None
    shares: Sequence[tuple[Cut, FilePart]] | None = None
    problem: Exception | None = None


def restore(
    task: Task,
    context: Context,
    engine: Engine,
    repository: Repository,
    origin: Repository | None,
    disk: LocalTier | None,
) -> ResumePoint:
    """Fills the engine from the newest generation that can be loaded. Collective.

    A run without generations starts from ``origin``, or else from the task's weights, or else from fresh
    values. If a node's disk can't be read, its saves are not used; the store's are.
    """
    start = _restore_any(task, context, engine, repository, origin, disk)
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
            _forgive(_Source(repository=repository, disk=disk, term=task.term), start.generation)
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
    disk: LocalTier | None,
) -> ResumePoint:
    saved, state = saved_run(task), EngineState(engine)
    start = restore_own(saved, context, state, repository, disk)
    if start.generation is None and origin is not None:
        source = _Source(repository=origin, disk=None, term=None)
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
    disk: LocalTier | None,
) -> ResumePoint:
    """Fills ``state`` from the run's newest generation that can be loaded, if there is any. Collective."""
    shares, problem = _shares_here(disk, context)
    source = _Source(repository=repository, disk=None if problem else disk, term=saved.term, shares=shares)
    start = _restore(saved, context, state, source)
    return replace(start, warning="; ".join(filter(None, [problem, start.warning])) or None)


def _shares_here(
    disk: LocalTier | None, context: Context
) -> tuple[Sequence[tuple[Cut, FilePart]], str | None]:
    try:
        return disk.inventory() if disk else (), None
    except StoreError as error:
        return (), f"rank {context.rank}: the saves on this node can't be read: {error}"


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
    """Rank 0's choice, made from the log and from what all ranks have on their disks. Collective."""
    by_rank = gather([(cut, part.rank) for cut, part in source.shares], list[tuple[Cut, int]])
    on_disk = _complete_on_disk(by_rank, saved)
    offer = _shared_offer(_decide(saved, source, refused, on_disk) if context.rank == 0 else None)
    if offer.decision is None or offer.decision.chosen is None:
        return offer
    name = offer.decision.chosen.name
    if any(one.name == name for one in on_disk):
        offer = replace(offer, shares=[share for share in source.shares if share[0].generation == name])
    if offer.manifest is not None:
        return offer
    try:
        return replace(offer, manifest=_manifest_from_parts(offer.shares or ()))
    except Corrupt as error:
        refused[name] = str(error)
        return _offer(saved, context, source, refused)


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


def _manifest_from_parts(shares: Sequence[tuple[Cut, FilePart]]) -> Manifest:
    """Builds the manifest of a generation from all ranks' parts, if the store has none. Collective."""
    by_rank = gather(list(shares), list[tuple[Cut, FilePart]], most_bytes=MOST_MANIFEST_BYTES)
    found = {part.rank: (cut, part) for of_rank in by_rank for cut, part in of_rank}
    cut = found[min(found)][0]
    return manifest_of(cut, [part for _, part in found.values()])


def _complete_on_disk(by_rank: Sequence[Sequence[tuple[Cut, int]]], saved: SavedRun) -> list[OnDisk]:
    """The generations of which each rank finds all files that it needs on its own node.

    Where each rank loads just what it saved it needs its own file only, else all files.
    """
    cuts = {cut.generation: cut for of_rank in by_rank for cut, _ in of_rank}
    usable = []
    for name, cut in cuts.items():
        seen = [{rank for found, rank in of_rank if found.generation == name} for of_rank in by_rank]
        is_own_enough = _loads_what_it_saved(saved, cut)
        wanted = [{rank} if is_own_enough else set(range(cut.world_size)) for rank in range(len(by_rank))]
        if cut.run == saved.run and all(need <= has for need, has in zip(wanted, seen, strict=True)):
            usable.append(OnDisk(name=name, step=cut.step, term=cut.term, number=cut.number))
    return usable


def _loads_what_it_saved(saved: SavedRun, cut: Cut) -> bool:
    """Whether a rank's file has all that this rank loads: not if several copies shared the saving."""
    is_same = (cut.strategy, cut.world_size) == (saved.strategy, saved.world_size)
    had_one_copy = cut.state.get("ranks_per_copy", cut.world_size) == cut.world_size
    return is_same and had_one_copy and saved.ranks_per_copy == saved.world_size


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
        manifest = _with_parts(context, source, found, landing, offer.shares)
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
    shares: Sequence[tuple[Cut, FilePart]] | None,
) -> Manifest | Exception:
    """Reads what this rank needs of the manifest. If one rank can't, the parts on the nodes' disks replace
    it, if they are there. Collective.
    """
    manifest: Manifest | Exception = found.heading(context.rank)
    try:
        if isinstance(landing, Landing):
            place = source.repository.place(found.cut.generation)
            manifest = with_parts(place, found, landing.wants, context.rank)
    except Exception as error:
        # Whatever it is, the other ranks would wait for this one.
        manifest = error
    if not any(gather(isinstance(manifest, Exception), bool)) or shares is None:
        return manifest
    try:
        return _manifest_from_parts(shares)
    except Corrupt as error:
        return error


def _fill(landing: Landing | Exception, source: _Source, manifest: Manifest | Exception) -> Exception | None:
    if isinstance(landing, Exception):
        return landing
    if isinstance(manifest, Exception):
        return manifest
    name = manifest.cut.generation
    try:
        places: list[GenerationPlace] = [source.disk.place(name)] if source.disk else []
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
