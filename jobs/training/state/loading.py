"""Loads the chosen generation, each rank its share: all could, or none goes on.

All bytes are compared with their digests before they are used.
"""

from collections.abc import Mapping, Sequence

from checkpointing.errors import Corrupt
from checkpointing.format.loading import fill
from checkpointing.format.manifest import (
    Manifest,
)
from checkpointing.format.reshard import plan
from checkpointing.generations.manifests import InPieces, with_parts
from checkpointing.saving.snapshot import Landing, Piece
from jobs.training.health.problems import PeerFailed, Problem, error_of, problem_of
from jobs.training.ranks.gathering import gather
from jobs.training.state.choosing import Offer, Source, manifest_from_parts
from jobs.training.state.random_state import RandomState, digest_of_next_numbers
from jobs.training.state.saved_run import TrainingState
from jobs.training.task.context import Context


def load_shares(
    context: Context, state: TrainingState, source: Source, offer: Offer, random: RandomState
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
    source: Source,
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
        return manifest_from_parts(context, source, found.cut.generation, held)
    except Corrupt as error:
        return error


def _fill(landing: Landing | Exception, source: Source, manifest: Manifest | Exception) -> Exception | None:
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


def restore_random(context: Context, random: RandomState, manifest: Manifest) -> str | None:
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
