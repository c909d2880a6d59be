"""Reads a generation's manifest from the store, and tells who wrote it."""

import hashlib

from checkpointing.errors import Corrupt
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import MANIFEST, MOST_MANIFEST_BYTES
from checkpointing.log.codec import unseal
from checkpointing.log.history import Generation
from checkpointing.log.signing import Signer
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing


def manifest_bytes(place: GenerationPlace, generation: Generation) -> bytes:
    """Returns the manifest as it was committed; raises ``Corrupt`` if another one or none lies there."""
    name = f"{place.folder}/{MANIFEST}"
    try:
        data = get_bounded(place.store, name, most_bytes=MOST_MANIFEST_BYTES)
    except Missing as error:
        raise Corrupt(f"{name} is gone") from error
    except TooLarge as error:
        raise Corrupt(f"{name} {error}") from error
    if hashlib.sha256(data).hexdigest() != generation.manifest_digest:
        raise Corrupt(f"{name} is not the one that was committed")
    return data


def has_our_signature(
    signer: Signer, place: GenerationPlace, generation: Generation, log: str | None
) -> bool:
    """Says whether the manifest is whole, signed with the key of this process, and of the log with the id
    ``log``; None is any log.
    """
    try:
        data = manifest_bytes(place, generation)
        is_signed = signer.is_manifest_signed(generation.name, data)
        return is_signed and log in (None, unseal(data).get("log"))
    except Corrupt:
        return False
