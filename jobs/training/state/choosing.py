"""Chooses the generation that all ranks load: rank 0 does, from the log and from what lies near all ranks.

It notes each choice before the loading, so that a generation whose loading ends in crashes is known. What
can't be read, or not by this version, is no choice. See ``offered``.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.digests import digest
from checkpointing.format.manifest import (
    MOST_MANIFEST_BYTES,
    Cut,
    FilePart,
    Manifest,
    manifest_of,
)
from checkpointing.generations.choice import Candidate, Decision, OnDisk, choose
from checkpointing.generations.manifests import InPieces, StoredManifest, opened
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Load, Resumed
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.peers import Seat
from checkpointing.stores.contract import Unavailable
from jobs.training.health.problems import Problem, error_of, problem_of
from jobs.training.ranks.gathering import bytes_from_rank_0, from_rank_0, gather
from jobs.training.state.saved_run import SavedRun
from jobs.training.state.share_copies import Held
from jobs.training.task.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
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
    """A share that lies on a rank's node: ``rank`` saved it. ``digest`` is that of all its bytes."""

    cut: Cut
    rank: int
    num_bytes: int
    is_in_memory: bool
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Rank 0's choice for all ranks: a generation with its manifest, or a problem that ends the attempt.

    ``stored`` is the manifest as rank 0 has read it. ``held`` says of each rank whose shares of the
    generation are on its node, and of how many bytes, if all that ranks need of it is near; else it is None.
    """

    decision: Decision | None
    stored: StoredManifest | None = None
    manifest: Manifest | InPieces | None = None
    held: Sequence[Mapping[int, int]] | None = None
    problem: Exception | None = None


def offered(saved: SavedRun, context: Context, source: Source, refused: dict[str, str]) -> Offer:
    """Rank 0's choice, made from the log and from what all ranks have near them. Collective."""
    own = [_told(one, source) for one in source.held]
    by_rank = gather(own, list[_Told])
    near = _complete_near(by_rank, saved, are_brought=source.seats is not None)
    offer = _shared_offer(_decide(saved, source, refused, near) if context.rank == 0 else None)
    if offer.decision is None or offer.decision.chosen is None:
        return offer
    name = offer.decision.chosen.name
    if any(one.name == name for one in near):
        offer = replace(offer, held=[sizes_of(name, told) for told in by_rank])
    if offer.manifest is not None:
        return offer
    try:
        return replace(offer, manifest=manifest_from_parts(context, source, name, offer.held or ()))
    except Corrupt as error:
        refused[name] = str(error)
        return offered(saved, context, source, refused)


def _told(one: Held, source: Source) -> _Told:
    part = one.part
    whole = digest("".join(part.chunks).encode())
    return _Told(one.cut, part.rank, part.num_bytes, one.tier is source.memory, whole)


def sizes_of(generation: str, told: Sequence[_Told]) -> dict[int, int]:
    return {one.rank: one.num_bytes for one in told if one.cut.generation == generation}


def _shared_offer(own: Offer | None) -> Offer:
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
    return Offer(
        decision=decision,
        manifest=opened(StoredManifest(data=data, tensors=tensors)) if data else None,
        problem=error_of(problem) if problem else None,
    )


def _decide(saved: SavedRun, source: Source, refused: dict[str, str], on_disk: Sequence[OnDisk]) -> Offer:
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
            return Offer(decision=decision)
        if source.term is not None:
            # Noted before loading: if loading crashes, the next attempt must know which generation it was.
            repository.append(Load(name=chosen.name), term=source.term)
        stored, manifest = _stored_manifest(repository, chosen, on_disk) or (None, None)
        return Offer(decision=decision, stored=stored, manifest=manifest)
    except Corrupt as error:
        assert chosen is not None
        refused[chosen.name] = str(error)
        if source.term is not None:
            repository.quarantine(chosen.name, str(error), term=source.term)
        return _decide(saved, source, refused, on_disk)
    except Unfit as error:
        assert chosen is not None
        forgive(source, chosen.name)
        return Offer(decision=None, problem=error)
    except Exception as error:
        return Offer(decision=None, problem=error)


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


def manifest_from_parts(
    context: Context, source: Source, generation: str, held: Sequence[Mapping[int, int]]
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
    for name in _contradicted(by_rank):
        del cuts[name]
    usable = []
    for name, cut in cuts.items():
        seen = [frozenset(sizes_of(name, told)) for told in by_rank]
        if are_brought:
            seen = [frozenset[int]().union(*seen)] * len(by_rank)
        needed = needed_by(saved, cut, len(by_rank))
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


def _contradicted(by_rank: Sequence[Sequence[_Told]]) -> set[str]:
    """The generations of which two nodes hold different bytes as the same share: who lost a peer writes
    others' shares too, and what they don't agree on is no state of the run.
    """
    found: dict[tuple[str, int], set[str]] = {}
    for one in (one for told in by_rank for one in told):
        found.setdefault((one.cut.generation, one.rank), set()).add(one.digest)
    return {name for (name, _), digests in found.items() if len(digests) > 1}


def forgive(source: Source, name: str) -> None:
    """Nothing is wrong with the generation. Else a few starts that are refused would make poison of it."""
    # Rank 0 raises nothing else here: the others would wait for it.
    with suppress(Exception):
        if source.term is not None:
            source.repository.append(Resumed(name=name), term=source.term)


def needed_by(saved: SavedRun, cut: Cut, world_size: int) -> list[frozenset[int]]:
    """Whose files each rank loads: where each loads just what it saved, its own alone; else all."""
    if _loads_what_it_saved(saved, cut):
        return [frozenset([rank]) for rank in range(world_size)]
    return [frozenset(range(cut.world_size))] * world_size


def _loads_what_it_saved(saved: SavedRun, cut: Cut) -> bool:
    """Whether a rank's file has all that this rank loads: not if several copies shared the saving."""
    is_same = (cut.strategy, cut.world_size) == (saved.strategy, saved.world_size)
    had_one_copy = cut.state.get("ranks_per_copy", cut.world_size) == cut.world_size
    return is_same and had_one_copy and saved.ranks_per_copy == saved.world_size
