"""Whether tokens belong to the spec's tokenizer and model, sources to each other, and what is evaluated on to
what is trained on. Reads no tokens: of each place its index is enough.
"""

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from checkpointing.stores.contract import Store
from jobs.runs.data_check.stored import is_decoded
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Tokens, WeightedTokens
from jobs.training.task.token_index import TokenIndex

# Two tokenizers' digests do not share a prefix of this length by chance.
_SHORTEST_DIGEST = 12
# Of the ids before a document. Tokenizers have one, or two.
_MOST_SHOWN = 4


def wrong_vocabulary(spec: RunSpec, store: Store, index: TokenIndex) -> Iterator[str]:
    """At most one line: another tokenizer than is expected, or ids that the model doesn't have."""
    size = spec.model.config.vocab_size
    vocabulary = index.vocabulary
    if spec.data.tokenizer is not None and not _is_of(spec.data.tokenizer, index):
        found = f"{vocabulary.tokenizer} ({vocabulary.digest[:12]})" if vocabulary else "an unknown tokenizer"
        yield (
            f"data.tokenizer: {store.url} was packed with {found}, not with {spec.data.tokenizer}; "
            "pack it again, or name what it was packed with"
        )
    elif vocabulary and (theirs := _digest_beside(spec)) and theirs != vocabulary.digest:
        yield (
            f"data: {store.url} was packed with {vocabulary.tokenizer} ({vocabulary.digest[:12]}), but "
            f"{spec.weights} has another tokenizer.json ({theirs[:12]}); pack it with that one, or set "
            f"data.tokenizer={vocabulary.digest[:12]} if that is meant"
        )
    elif vocabulary is not None and vocabulary.size > size:
        yield (
            f"data: {store.url} was packed with {vocabulary.tokenizer}, a vocabulary of {vocabulary.size:,}, "
            f"but {spec.model.name} has one of {size:,}; pack it with the model's tokenizer"
        )
    elif beyond := [shard for shard in index.shards if (shard.largest_id or 0) >= size]:
        yield (
            f"data: {store.url}/{beyond[0].name}: has the token id {beyond[0].largest_id:,}, but the "
            f"vocabulary of {spec.model.name} ends at {size - 1:,}; pack it with the model's tokenizer"
        )


def _is_of(wanted: str, index: TokenIndex) -> bool:
    """Whether the data was packed with ``wanted``: a tokenizer's file, its digest or a prefix of that, or its
    name.
    """
    vocabulary = index.vocabulary
    if vocabulary is None:
        return False
    path = Path(wanted)
    if path.is_file():
        return vocabulary.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    is_digest = len(wanted) >= _SHORTEST_DIGEST and vocabulary.digest.startswith(wanted)
    return is_digest or wanted == vocabulary.tokenizer


def _digest_beside(spec: RunSpec) -> str | None:
    """The digest of the tokenizer beside the weights; None if there is none, or if the spec names a
    tokenizer.
    """
    if spec.weights is None or spec.data.tokenizer is not None:
        return None
    weights = Path(spec.weights).expanduser()
    file = (weights.parent if weights.is_file() else weights) / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def wrong_sources(sources: Sequence[WeightedTokens]) -> Iterator[str]:
    """At most one line for each source."""
    first = sources[0]
    telling = next((one for one in sources if _begin_ids_of(one.tokens) is not None), first)
    for source in sources:
        tokens, where = source.tokens, f"data.sources: {source.name}"
        if not tokens.windows.num_samples:
            yield f"{where}: has no sample beside those held out (eval.samples); pack more, or leave it out"
        elif bool(tokens.index.chat) != bool(first.tokens.index.chat):
            yield f"{where}: conversations and text can't be mixed, but {first.name} is of the other kind"
        elif _digest_of(tokens) != _digest_of(first.tokens) or tokens.end_id != first.tokens.end_id:
            yield f"{where}: was packed with another tokenizer than {first.name}; pack one of them again"
        elif problem := _other_beginning(tokens, telling.tokens, telling.name):
            yield f"{where}: {problem}"


def wrong_held_out(spec: RunSpec, held_out: Tokens, places: Sequence[Tokens]) -> str | None:
    """What is wrong, to be said after the place's name, if ``held_out`` can't tell how well a run learns that
    is trained on ``places``.
    """
    num_samples, first, split = held_out.windows.num_samples, places[0], held_out.index.split
    larger = [one.url for one in places if split and _share(one.index) < split.share]
    if is_decoded(held_out.index):
        return "holds Parquet or MDS files of ids; expected what `longhaul pack` wrote, or a .bin"
    if bool(held_out.index.chat) != bool(first.index.chat):
        return f"and {first.url} are not both conversations; expected the same of both"
    if _digest_of(held_out) != _digest_of(first) or held_out.end_id != first.end_id:
        return f"was packed with another tokenizer than {first.url}; pack one of them again"
    if problem := next(filter(None, (_other_beginning(held_out, one, one.url) for one in places)), None):
        return problem
    if split and not split.is_held_out:
        return "is what a packing left for training; expected the folder held-out below it"
    if any(_are_same(held_out, one) for one in places):
        return "is trained on; expected other documents, such as `longhaul pack --hold-out` keeps apart"
    if split and (sides := [one.url for one in places if one.index.split and one.index.split.is_held_out]):
        return (
            f"and {sides[0]}, which is trained on, were both held out, and may share documents; train on "
            "what a packing left for training"
        )
    if larger:
        return (
            f"holds a larger share of documents than was held out of {larger[0]}, so it may have documents "
            "that are trained on; pack both with the same --hold-out"
        )
    if num_samples < spec.eval.samples:
        return (
            f"has {num_samples:,} samples of seq_len {spec.seq_len}, but eval.samples is "
            f"{spec.eval.samples:,}; expected at most {num_samples:,}"
        )
    return None


def _are_same(one: Tokens, other: Tokens) -> bool:
    """Whether they share a place or a shard, as far as is known."""
    mine, theirs = ({shard.sha256 for shard in tokens.index.shards} - {None} for tokens in (one, other))
    return one.url == other.url or not mine.isdisjoint(theirs)


def _share(index: TokenIndex) -> Fraction:
    """The share of documents that was held out; 1 if nothing says what was."""
    return index.split.share if index.split else Fraction(1)


def _other_beginning(tokens: Tokens, other: Tokens, name: str) -> str | None:
    """What is wrong if an index says that documents begin otherwise than the other's, which is called
    ``name``. Indexes that do not say, such as those of older versions, are taken.
    """
    mine, theirs = _begin_ids_of(tokens), _begin_ids_of(other)
    if mine is None or theirs is None or mine == theirs:
        return None
    return (
        f"has {told_of_begin(mine)} before each document, but {name} has {told_of_begin(theirs)}; pack one "
        "of them again"
    )


def told_of_begin(begin_ids: Sequence[int]) -> str:
    """In a few words."""
    if not begin_ids:
        return "nothing"
    shown = ", ".join(map(str, begin_ids[:_MOST_SHOWN])) + (", ..." if len(begin_ids) > _MOST_SHOWN else "")
    return f"the id {shown}" if len(begin_ids) == 1 else f"the ids {shown}"


def _begin_ids_of(tokens: Tokens) -> Sequence[int] | None:
    return tokens.index.vocabulary.begin_ids if tokens.index.vocabulary else None


def _digest_of(tokens: Tokens) -> str | None:
    return tokens.index.vocabulary.digest if tokens.index.vocabulary else None
