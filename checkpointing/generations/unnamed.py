"""Finds whole generations in a store that the log does not name: their commits were lost or never written.

A good generation is never deleted only because the log lacks it. Just an explicit command may delete it,
see ``garbage``. A log that lost records, as in a restored bucket, leaves many such generations. An attempt
killed right before its commit leaves one.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import MANIFEST, MOST_MANIFEST_BYTES, Cut, term_of
from checkpointing.generations.choice import Spoilt, is_trusted
from checkpointing.generations.manifests import summary_of
from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import Generation, LogView
from checkpointing.log.signing import Signer
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store

# Parsed, a planted object may take thirty times its size. What we write as one object or root is smaller.
_MOST_UNSIGNED_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """What a start found in the store in addition to the log.

    - ``num_gone`` is the number of newer records that the hint named.
    - ``adopted`` are generations that the start committed again.
    - ``kept`` are whole generations that the log does not name, and which stay.
    """

    num_gone: int = 0
    adopted: tuple[Generation, ...] = ()
    kept: tuple[Generation, ...] = ()


def looks_whole(objects: Collection[str]) -> bool:
    """Says whether a manifest exists: it is written last and deleted first."""
    return any(name.endswith(f"/{MANIFEST}") for name in objects)


def find_whole(
    store: Store,
    run: str,
    objects: Mapping[str, Collection[str]],
    *,
    now_s: float,
    may_parse: Callable[[str, bytes], bool] = lambda name, manifest: True,
) -> list[Generation]:
    """Returns the generations whose manifest is of this run and whose files all exist, in the order of
    their saves.

    ``objects`` are names by generation. ``now_s`` counts as the time of their commits. No file's bytes are
    read. ``may_parse`` is asked with a generation's name and its manifest.
    """
    found = [
        _whole(store, run, name, objects[name], now_s, may_parse)
        for name in objects
        if looks_whole(objects[name])
    ]
    return sorted((one for one in found if one), key=_place)


def is_ours_or_small(signer: Signer, name: str, manifest: bytes) -> bool:
    """Says whether the manifest is worth its parsing to who has the store's key. Without a key all are."""
    is_small = len(manifest) <= _MOST_UNSIGNED_BYTES
    return is_small or not signer.has_key or signer.is_manifest_signed(name, manifest)


def newer(view: LogView, whole: Sequence[Generation], spoilt: Spoilt = ()) -> list[Generation]:
    """Returns the generations that a run would prefer to all that its log names, if they were committed."""
    newest = max(map(_place, of_this_life(view)), default=(0, 0))
    return [
        one
        for one in whole
        if one.term >= view.life_term and _place(one) > newest and is_trusted(one.term, one.step, spoilt)
    ]


def generation_of(cut: Cut, num_bytes: int, manifest: bytes, now_s: float) -> Generation:
    """Returns the log's entry for the generation with this ``manifest``."""
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


def _whole(
    store: Store,
    run: str,
    name: str,
    objects: Collection[str],
    now_s: float,
    may_parse: Callable[[str, bytes], bool],
) -> Generation | None:
    folder = f"runs/{run}/gen/{name}"
    with suppress(Corrupt, Missing, TooLarge):
        data = get_bounded(store, f"{folder}/{MANIFEST}", most_bytes=MOST_MANIFEST_BYTES)
        if not may_parse(name, data):
            return None
        summary = summary_of(data)
        cut = summary.cut
        # A term that the name does not show would make all that the run saves from there on older.
        is_of_here = (cut.run, cut.generation, cut.term) == (run, name, term_of(name))
        if is_of_here and {f"{folder}/{file}" for file in summary.files} <= set(objects):
            return generation_of(cut, summary.num_bytes, data, now_s)
    return None


def _place(one: Generation) -> tuple[int, int]:
    """Orders by term and save number; never by step, because a rollback lowers steps."""
    return one.term, one.number
