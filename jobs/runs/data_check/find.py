"""Finds the data that a run trains on and is evaluated on; data that it can't use are refused by the spec's
key or the data's place.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from tempfile import gettempdir

from checkpointing.stores.contract import Store
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check.agreement import wrong_held_out, wrong_sources, wrong_vocabulary
from jobs.runs.data_check.stored import index_at, is_decoded, look_at_shards, wrong_sizes
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.mixture import whole_weights
from jobs.training.data.shard_cache import folder_conflict
from jobs.training.task.task import Mixture, ShardCacheLimits, Tokens, WeightedTokens
from jobs.training.task.token_index import DTYPE_BYTES, TokenIndex
from jobs.training.task.windows import Windows, cut_into_windows, rows_of

Data = Tokens | Mixture


def find_data(spec: RunSpec) -> Data | None:
    """The tokens or the mixture to train on, and what to evaluate on; None for synthetic data. Raises as
    ``find_tokens`` does.
    """
    data = _mixture(spec) if spec.data.sources else find_tokens(spec)
    if data is None or spec.eval.path is None:
        return data
    try:
        held_out = _tokens_at(spec, spec.eval.path, "eval.path", num_held_out=0)
    except SpecError as error:
        # Whatever is wrong there is not wrong with what is trained on.
        raise SpecError([re.sub("^data: ", "eval.path: ", problem) for problem in error.problems]) from None
    if problem := wrong_held_out(spec, held_out, places_of(data)):
        raise SpecError([f"eval.path: {held_out.url} {problem}"])
    # A cache makes room for what is trained on; these few samples are read in place.
    return replace(data, held_out=replace(held_out, cache=None))


def places_of(data: Data | None) -> list[Tokens]:
    """The tokens of all sources that are trained on."""
    return [data] if isinstance(data, Tokens) else [one.tokens for one in data.sources] if data else []


def find_tokens(spec: RunSpec) -> Tokens | None:
    """The tokens to train on; None for synthetic data.

    Raises ``SpecError`` if a run of this spec could not do one step or would learn from another tokenizer's
    ids. Raises ``StoreError`` if the data cannot be read now.
    """
    if spec.data.kind == "synthetic":
        _check_room(spec, spec.data.samples, f"data.samples: {spec.data.samples:,} samples")
        return None
    assert spec.data.path is not None
    num_held_out = num_held_out_of_each(spec)
    tokens = _tokens_at(spec, spec.data.path, "data.path", num_held_out=num_held_out)
    beside = f" beside {num_held_out:,} held out (eval.samples)" if num_held_out else ""
    _check_room(
        spec,
        tokens.windows.num_samples,
        f"data: {tokens.url} has {tokens.index.num_tokens:,} tokens, {tokens.windows.num_samples:,} samples "
        f"of seq_len {spec.seq_len}{beside}",
    )
    return tokens


def num_held_out_of_each(spec: RunSpec) -> int:
    """How many samples of each place that is trained on are held out, all the same, so that what is trained
    on needs no weights.
    """
    return 0 if spec.eval.path else -(-spec.eval.samples // max(1, len(spec.data.sources)))


def num_samples(spec: RunSpec, data: Data | None) -> int:
    """How many samples make an epoch."""
    match data:
        case Tokens():
            return data.windows.num_samples
        case Mixture():
            return data.num_samples
        case None:
            return spec.data.samples


def _tokens_at(spec: RunSpec, path: str, key: str, *, num_held_out: int) -> Tokens:
    store, index = index_at(path, key)
    cache = _cache_limits(spec, index)
    looks = look_at_shards(store, index)
    if problems := [*wrong_vocabulary(spec, store, index), *wrong_sizes(looks)]:
        raise SpecError(problems)
    return Tokens(
        url=store.url,
        index=index,
        windows=_windows(spec, store, index, num_held_out),
        end_id=_end_id(spec, store, index),
        cache=cache,
        versions=tuple(look.version for look in looks),
    )


def _windows(spec: RunSpec, store: Store, index: TokenIndex, num_held_out: int) -> Windows:
    if index.chat is None:
        return cut_into_windows(index.num_tokens, seq_len=spec.seq_len, num_held_out=num_held_out)
    if index.chat.seq_len != spec.seq_len:
        rows = f"{index.chat.seq_len:,}"
        raise SpecError(
            [
                f"data: {store.url} holds conversations in rows of {rows} tokens, but seq_len is "
                f"{spec.seq_len:,}; set seq_len to {rows}, or pack them with --seq-len {spec.seq_len}"
            ]
        )
    return rows_of(index.num_tokens, seq_len=spec.seq_len, num_held_out=num_held_out)


def _end_id(spec: RunSpec, store: Store, index: TokenIndex) -> int | None:
    """The id that ends a document; None if tokens may attend to other documents'. Raises ``SpecError`` if it
    is not known.
    """
    # Conversations know their beginnings themselves.
    if spec.data.attention == "causal" or index.chat:
        return None
    told = index.vocabulary.end_id if index.vocabulary else None
    end_id = told if spec.data.end_id is None else spec.data.end_id
    if end_id is None:
        raise SpecError(
            [
                f"data.attention: nothing says which id ends a document of {store.url}; name it with "
                "data.end_id, or pack the data again"
            ]
        )
    if end_id >= (size := spec.model.config.vocab_size):
        raise SpecError(
            [f"data.end_id: is {end_id:,}; expected an id of {spec.model.name}, which ends at {size - 1:,}"]
        )
    return end_id


def _cache_limits(spec: RunSpec, index: TokenIndex) -> ShardCacheLimits | None:
    """The limits of the shard cache; None if shards are read in place. Parquet always needs a folder to be
    decoded in.
    """
    local = spec.data.local
    if local.dir is None and not is_decoded(index):
        return None
    folder, saves = local.dir or gettempdir(), spec.checkpoint.local.dir
    if saves is not None and (problem := folder_conflict(folder, saves)):
        raise SpecError([problem])
    return ShardCacheLimits(folder=folder, limit_bytes=round(local.gib * 2**30))


def _mixture(spec: RunSpec) -> Mixture:
    named = spec.data.sources
    weights = whole_weights([source.weight for source in named])
    num_held_out = num_held_out_of_each(spec)
    sources = tuple(
        WeightedTokens(
            name=source.name,
            weight=weight,
            tokens=_tokens_at(spec, source.path, f"data.sources.{number}.path", num_held_out=num_held_out),
        )
        for number, (source, weight) in enumerate(zip(named, weights, strict=True))
    )
    if problems := list(wrong_sources(sources)):
        raise SpecError(problems)
    mixture = Mixture(sources=_with_shares(sources))
    _check_room(spec, mixture.num_samples, f"data.sources: have {mixture.num_samples:,} samples together")
    return mixture


def _with_shares(sources: Sequence[WeightedTokens]) -> tuple[WeightedTokens, ...]:
    """Divides the cache among the sources: Parquet comes first, which has to fit, then each in its order."""
    shares: dict[str, int] = {}
    for one in sorted(sources, key=lambda one: not is_decoded(one.tokens.index)):
        if cache := one.tokens.cache:
            room = cache.limit_bytes - sum(shares.values())
            needed = one.tokens.index.num_tokens * DTYPE_BYTES[one.tokens.index.dtype]
            shares[one.name] = min(needed, room)
            if is_decoded(one.tokens.index) and shares[one.name] < needed:
                raise SpecError(
                    [
                        f"data.sources: {one.name}: its Parquet files take {needed / 2**30:.2f} GiB as "
                        "shards, beside those of other sources; expected room for all in data.local.gib"
                    ]
                )
    return tuple(replace(one, tokens=_with_share(one.tokens, shares.get(one.name))) for one in sources)


def _with_share(tokens: Tokens, share_bytes: int | None) -> Tokens:
    return replace(tokens, cache=tokens.cache and replace(tokens.cache, share_bytes=share_bytes))


def _check_room(spec: RunSpec, num_samples: int, found: str) -> None:
    needed = spec.recipe().sequences_per_step
    if num_samples < needed:
        product = "world_size x micro_batch x grad_accum"
        raise SpecError([f"{found}, but one step takes {needed:,} ({product}); expected as many"])
