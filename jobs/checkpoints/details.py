"""Describes one generation in detail: its contents and its history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import Manifest
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import LogRecord
from checkpointing.log.history import Commit, Generation, Quarantine, Tombstone

_PARAMETERS = "param/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the manifest records. ``files`` maps names to sizes; ``state`` is shared by all ranks."""

    files: Mapping[str, int]
    strategy: str
    world_size: int
    num_tensors: int
    num_parameters: int
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEvent:
    number: int
    written_s: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDetails:
    """One generation. If the manifest is corrupt, ``problem`` says why and ``contents`` is None."""

    generation: Generation
    contents: Contents | None
    problem: str | None
    events: tuple[GenerationEvent, ...]


def portray(repository: Repository, generation: Generation) -> GenerationDetails:
    contents, problem = None, None
    try:
        contents = _contents(repository.manifest(generation, with_shards=False))
    except Corrupt as error:
        problem = str(error)
    events = tuple(_event(one) for one in repository.records() if generation.name in _names_in(one))
    return GenerationDetails(generation=generation, contents=contents, problem=problem, events=events)


def _contents(manifest: Manifest) -> Contents:
    tensors = manifest.tensors
    parameters = (tensor for name, tensor in tensors.items() if name.startswith(_PARAMETERS))
    return Contents(
        files={part.file: part.num_bytes for part in manifest.parts},
        strategy=manifest.cut.strategy,
        world_size=manifest.cut.world_size,
        num_tensors=len(tensors),
        num_parameters=sum(tensor.num_elements for tensor in parameters),
        state=manifest.cut.state,
    )


def _names_in(record: LogRecord) -> tuple[str, ...]:
    match record.entry:
        case Commit(generation=generation):
            return (generation.name,)
        case Tombstone(names=names):
            return names
        case entry:
            return (getattr(entry, "name", ""),)


def _event(record: LogRecord) -> GenerationEvent:
    what = type(record.entry).__name__.lower()
    if isinstance(record.entry, Quarantine):
        what = f"{what}: {record.entry.reason}"
    return GenerationEvent(number=record.number, written_s=record.written_s, what=what)
