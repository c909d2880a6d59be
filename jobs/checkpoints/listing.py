"""Lists the generations of a run, with where each is stored and why it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention, backup, best, latest, of_this_life, reasons
from checkpointing.log.history import Generation
from checkpointing.saving.local_tier import LocalTier, local_tier_name
from checkpointing.stores.contract import Denied
from jobs.spec_schema.run_checkpoints import stored_local_folder, stored_retention
from jobs.spec_schema.stored_spec import Described, stored_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingRow:
    """One generation. ``places`` names the store and, with the number of ranks' shares, this machine's disk.

    ``called`` holds the words that refer to the generation now, such as ``latest``. ``kept_for`` holds the
    retention rules that keep it.
    """

    generation: Generation
    places: tuple[str, ...]
    called: tuple[str, ...]
    kept_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointListing:
    """The generations of a run in the order of commits, then those only on this machine's disk.

    ``num_bytes`` counts the bytes in the store.
    """

    run: str
    store: str
    policy: Retention
    rows: tuple[ListingRow, ...]
    num_bytes: int


def take_inventory(repository: Repository) -> CheckpointListing:
    """The listing as of the repository's last ``refresh``."""
    spec = stored_spec(repository.store, repository.run) or {}
    policy = _policy(spec)
    rules, called = reasons(repository.view, policy), _called(repository, policy)
    shares = _near_shares(repository, spec)
    local = {name: _local(found) for name, found in shares.items()}
    generations = repository.view.generations
    stored = [
        ListingRow(
            generation=found,
            places=("store", *filter(None, [local.get(found.name)])),
            called=tuple(word for word, name in called.items() if name == found.name),
            kept_for=rules[found.name],
        )
        for found in generations
    ]
    alone = [found for name, found in shares.items() if not repository.view.generation(name)]
    return CheckpointListing(
        run=repository.run,
        store=repository.store.url,
        policy=policy,
        rows=(*stored, *map(_row_on_disk, alone)),
        num_bytes=sum(found.num_bytes for found in generations),
    )


def policy_of(repository: Repository) -> Retention:
    """The retention of the run, or the defaults if no readable one is stored."""
    return _policy(stored_spec(repository.store, repository.run) or {})


def _policy(spec: Described) -> Retention:
    try:
        return stored_retention(spec["checkpoint"]["retention"])
    except (KeyError, TypeError, ValueError):
        return Retention()


def _called(repository: Repository, policy: Retention) -> dict[str, str]:
    generations = of_this_life(repository.view)
    found = {
        "latest": latest(generations),
        "backup": backup(generations),
        "best": next(iter(best(generations, policy)), None),
    }
    return {word: generation.name for word, generation in found.items() if generation}


def _near_shares(repository: Repository, spec: Described) -> dict[str, list[tuple[Cut, FilePart]]]:
    """The shares on this machine's local tier that belong to the run, by generation."""
    try:
        folder = stored_local_folder(spec["checkpoint"]["local"]["dir"])
    except (KeyError, TypeError, ValueError):
        return {}
    if folder is None:
        return {}
    disk = LocalTier(Path(folder), local_tier_name(repository.run, repository.lineage()), num_kept=2)
    shares: dict[str, list[tuple[Cut, FilePart]]] = {}
    try:
        found = disk.inventory()
    except Denied:
        # No start reads it either. Whoever wrote the spec may have named any folder.
        return {}
    for cut, part in sorted(found, key=lambda share: (share[0].term, share[0].number)):
        shares.setdefault(cut.generation, []).append((cut, part))
    return shares


def _local(shares: Sequence[tuple[Cut, FilePart]]) -> str:
    return f"local {len(shares)}/{shares[0][0].world_size}"


def _row_on_disk(shares: Sequence[tuple[Cut, FilePart]]) -> ListingRow:
    cut = shares[0][0]
    generation = Generation(
        name=cut.generation,
        step=cut.step,
        term=cut.term,
        number=cut.number,
        committed_s=cut.created_s,
        num_bytes=sum(part.num_bytes for _, part in shares),
        manifest_digest="",
        epoch_end=cut.epoch_end,
        metrics=cut.metrics,
    )
    return ListingRow(generation=generation, places=(_local(shares),), called=(), kept_for=())
