"""How the first document of a place begins, as text."""

from array import array
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from checkpointing.stores.contract import Missing
from jobs.commandline.usage_error import SpecError
from jobs.packing.pieces import InputError
from jobs.packing.tokenizing import ByteTokenizer, Tokenizer, read_recipe, tokenizer_file
from jobs.runs.data_read.documents import Place, parts_of
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.token_index import BEGINS, DTYPE_BYTES, ID_MASK, DataError

_NUM_TOKENS = 64


def excerpt(place: Place, tokenizer: Tokenizer | None) -> str | None:
    """None without a tokenizer, of shards that can't be read, and of a document without a token. Control
    characters are escaped.
    """
    if tokenizer is None:
        return None
    try:
        return _escaped(tokenizer.text(_first_ids(place))) or None
    except (DataError, Missing):
        return None


def tokenizer_at_hand(place: Place, given: str | None, spec: RunSpec | None) -> Tokenizer | None:
    """The tokenizer that made the ids: bytes, or that of ``given`` or of a file that the spec names. Raises
    ``SpecError`` if ``given`` is another one.
    """
    vocabulary = place.index.vocabulary
    if vocabulary and vocabulary.digest == ByteTokenizer.vocabulary.digest:
        return ByteTokenizer()
    for name in [given] if given else _named(spec):
        try:
            found = read_recipe(tokenizer_file(name), None, needs_end=False).open()
        except InputError as error:
            if given:
                raise SpecError([str(error)]) from None
            continue
        if vocabulary is None or found.vocabulary.digest == vocabulary.digest:
            return found
    if given and vocabulary:
        made_by = f"{vocabulary.tokenizer} ({vocabulary.digest[:12]})"
        raise SpecError([f"--tokenizer {given}: {place.store.url} was packed with {made_by}; name its file"])
    return None


def _named(spec: RunSpec | None) -> Sequence[str]:
    named = [spec.data.tokenizer, spec.weights and str(Path(spec.weights).expanduser())] if spec else []
    return [name for name in named if name]


def _first_ids(place: Place) -> Sequence[int]:
    """Those of the first document, at most as many as are shown."""
    width = DTYPE_BYTES[place.index.dtype]
    words = array("H" if width == 2 else "I", next(parts_of(place))[: _NUM_TOKENS * width])
    if place.index.chat:
        begins = [at for at, word in enumerate(words) if at and word & BEGINS]
        return [word & ID_MASK for word in words[: begins[0] if begins else None]]
    return list(takewhile(lambda word: word != place.end_id, words))


def _escaped(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
