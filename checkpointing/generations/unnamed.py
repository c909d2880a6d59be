"""Whole generations in a store that its log does not name: commits that were lost, or never got there.

What is good is never deleted because nobody knows it: only an explicit command may delete these, see
``leftovers``. A log that has gone back, as in a restored bucket, leaves many; an attempt that is killed right
before its commit leaves one.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import MANIFEST, Cut, decode_manifest
from checkpointing.generations.choice import Spoilt, is_trusted
from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import Generation, LogView
from checkpointing.stores.contract import Missing, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """What a start found in the store beside what its log tells.

    ``num_gone`` are newer records that the hint told of, ``adopted`` generations that it committed again,
    ``kept`` whole ones that nobody names, and which stay.
    """

    num_gone: int = 0
    adopted: tuple[Generation, ...] = ()
    kept: tuple[Generation, ...] = ()


def looks_whole(objects: Collection[str]) -> bool:
    """The manifest is written last and deleted first."""
    return any(name.endswith(f"/{MANIFEST}") for name in objects)


def find_whole(
    store: Store, run: str, objects: Mapping[str, Collection[str]], *, now_s: float
) -> list[Generation]:
    """Those of ``objects``, by generation, whose manifest is this run's and whose files are all there, in
    the order of their saves. ``now_s`` counts as the time of their commits. No file's bytes are read.
    """
    found = [_whole(store, run, name, objects[name], now_s) for name in objects if looks_whole(objects[name])]
    return sorted((one for one in found if one), key=_place)


def newer(view: LogView, whole: Sequence[Generation], spoilt: Spoilt = ()) -> list[Generation]:
    """Those that a run would go on from before all that its log names, if their commits were there."""
    newest = max(map(_place, of_this_life(view)), default=(0, 0))
    return [
        one
        for one in whole
        if one.term >= view.life_term and _place(one) > newest and is_trusted(one.term, one.step, spoilt)
    ]


def generation_of(cut: Cut, num_bytes: int, manifest: bytes, now_s: float) -> Generation:
    """What the log keeps of a generation that is ``manifest``."""
    return Generation(
        name=cut.generation,
        step=cut.step,
        term=cut.term,
        number=cut.number,
        committed_s=now_s,
        num_bytes=num_bytes,
        manifest_digest=hashlib.sha256(manifest).hexdigest(),
        epoch_end=cut.epoch_end,
        metrics=cut.metrics,
    )


def _whole(store: Store, run: str, name: str, objects: Collection[str], now_s: float) -> Generation | None:
    folder = f"runs/{run}/gen/{name}"
    with suppress(Corrupt, Missing):
        data = store.get(f"{folder}/{MANIFEST}")
        manifest = decode_manifest(data)
        is_of_here = (manifest.cut.run, manifest.cut.generation) == (run, name)
        if is_of_here and all(f"{folder}/{part.file}" in objects for part in manifest.parts):
            return generation_of(manifest.cut, manifest.num_bytes + len(data), data, now_s)
    return None


def _place(one: Generation) -> tuple[int, int]:
    """In the order of saves; never by step, which may go back."""
    return one.term, one.number
