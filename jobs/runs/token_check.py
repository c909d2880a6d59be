"""Finds the data that a run trains on, and checks it against the spec before anything is started."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import gettempdir

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, is_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.versions import TellsVersions, versions_of
from cluster.inventory import WorkerGroup
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.formats.bin_files import BIN, IDX, index_of_bin
from jobs.training.data.mixture import whole_weights
from jobs.training.data.shard_cache import folder_conflict
from jobs.training.task.task import Mixture, ShardCacheLimits, Tokens, WeightedTokens
from jobs.training.task.token_index import (
    DECODED,
    DTYPE_BYTES,
    INDEX,
    MOST_INDEX_BYTES,
    PARQUET,
    DataError,
    TokenIndex,
    TokenShard,
    from_json,
)
from jobs.training.task.windows import Windows, cut_into_windows, rows_of

Data = Tokens | Mixture
_NUM_READERS = 16
# A folder of Parquet files is listed, and a listing may have no end.
MOST_FILES = 1_000_000
# Two tokenizers' digests do not share a prefix of this length by chance.
_SHORTEST_DIGEST = 12
# Of the ids before a document. Tokenizers have one, or two.
_MOST_SHOWN = 4


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
    if problem := _wrong_held_out(spec, held_out, places_of(data)):
        raise SpecError([f"eval.path: {held_out.url} {problem}"])
    # A cache makes room for what is trained on; these few samples are read in place.
    return replace(data, held_out=replace(held_out, cache=None))


def are_in_parts(data: Data | None) -> bool:
    """Whether rows hold several documents or conversations that are kept apart."""
    return any(tokens.index.chat or tokens.end_id is not None for tokens in places_of(data))


def places_of(data: Data | None) -> list[Tokens]:
    """The tokens of all sources that are trained on."""
    return [data] if isinstance(data, Tokens) else [one.tokens for one in data.sources] if data else []


def have_a_mask(spec: RunSpec, group: WorkerGroup, data: Data | None) -> bool:
    """Whether a mask keeps the documents or conversations of a row apart.

    On a device flash is told where they begin, and flex has a mask of blocks.
    """
    is_on_device = group.vendor != "cpu" and not group.simulated
    return are_in_parts(data) and not (spec.attention in ("flash", "flex") and is_on_device)


def check_kernel(spec: RunSpec, group: WorkerGroup, data: Data | None) -> None:
    """Raises ``SpecError`` if flash would need a mask, which it takes on no device but a CPU."""
    window = spec.model.config.sliding_window
    needs_one = window is not None and spec.seq_len > window and are_in_parts(data)
    if needs_one and spec.attention == "flash" and not have_a_mask(spec, group, data):
        raise SpecError(
            [
                f"attention: flash takes no mask on a device, but documents or conversations in rows of "
                f"{spec.seq_len:,} tokens need one with the model's window of {window:,}; expected auto, "
                "efficient, math or flex"
            ]
        )


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


def _wrong_held_out(spec: RunSpec, held_out: Tokens, places: Sequence[Tokens]) -> str | None:
    num_samples, first, split = held_out.windows.num_samples, places[0], held_out.index.split
    larger = [one.url for one in places if split and _share(one.index) < split.share]
    if _is_decoded(held_out.index):
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


def _tokens_at(spec: RunSpec, path: str, key: str, *, num_held_out: int) -> Tokens:
    store, index = index_at(path, key)
    cache = _cache_limits(spec, index)
    looks = _looks(store, index)
    if problems := [*_wrong_vocabulary(spec, store, index), *_wrong_sizes(looks)]:
        raise SpecError(problems)
    return Tokens(
        url=store.url,
        index=index,
        windows=_windows(spec, store, index, num_held_out),
        end_id=_end_id(spec, store, index),
        cache=cache,
        versions=tuple(look.version for look in looks),
    )


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
    if problems := list(_wrong_sources(sources)):
        raise SpecError(problems)
    mixture = Mixture(sources=_with_shares(sources))
    _check_room(spec, mixture.num_samples, f"data.sources: have {mixture.num_samples:,} samples together")
    return mixture


def _with_shares(sources: Sequence[WeightedTokens]) -> tuple[WeightedTokens, ...]:
    """Divides the cache among the sources: Parquet comes first, which has to fit, then each in its order."""
    shares: dict[str, int] = {}
    for one in sorted(sources, key=lambda one: not _is_decoded(one.tokens.index)):
        if cache := one.tokens.cache:
            room = cache.limit_bytes - sum(shares.values())
            needed = one.tokens.index.num_tokens * DTYPE_BYTES[one.tokens.index.dtype]
            shares[one.name] = min(needed, room)
            if _is_decoded(one.tokens.index) and shares[one.name] < needed:
                raise SpecError(
                    [
                        f"data.sources: {one.name}: its Parquet files take {needed / 2**30:.2f} GiB as "
                        "shards, beside those of other sources; expected room for all in data.local.gib"
                    ]
                )
    return tuple(replace(one, tokens=_with_share(one.tokens, shares.get(one.name))) for one in sources)


def _with_share(tokens: Tokens, share_bytes: int | None) -> Tokens:
    return replace(tokens, cache=tokens.cache and replace(tokens.cache, share_bytes=share_bytes))


def _wrong_sources(sources: Sequence[WeightedTokens]) -> Iterator[str]:
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


def index_at(path: str, key: str) -> tuple[Store, TokenIndex]:
    """The place of tokens that ``key`` names, and its index. Raises ``SpecError`` if there are no tokens.

    The path of a ``.bin`` or ``.idx`` is that of another tool's file, unless it is a folder's.
    """
    folder, slash, name = path.rpartition("/")
    store = _opened(path, key)
    if is_file := name.endswith((BIN, IDX)) and not _is_folder(store):
        store = _opened(folder + slash or ".", key)
    try:
        return store, _index_of_file(store, name) if is_file else _index(store)
    except DataError as error:
        raise SpecError([str(error)]) from None


def _is_folder(store: Store) -> bool:
    """Whether there is such a folder. A bucket has folders as far as something lies below."""
    if not isinstance(store, LocalStore):
        return any(store.contents())
    try:
        return store.root.is_dir()
    except OSError:
        return False  # Its name is too long for a folder's.


def _index_of_file(store: Store, name: str) -> TokenIndex:
    if not is_name(name):
        raise DataError(
            f"data: {store.url}/{name}: expected letters, digits and ._+=@- in its name; rename it"
        )
    try:
        index = index_of_bin(store, name)
    except Missing as error:
        raise DataError(f"data: {error}; expected a .bin, or a .bin and its .idx") from None
    if not index.num_tokens:
        raise DataError(f"data: {store.url}/{name}: has no tokens; name another")
    return index


def _opened(path: str, key: str) -> Store:
    """Raises ``SpecError`` if ``path`` is no address. It is repeated if no password may be in it."""
    if not path.isprintable():
        raise SpecError([f"{key}: {path!r:.80} has control characters; give another path"])
    try:
        return open_store(path, base=store_base())
    except StoreError as error:
        shown = "" if "@" in path else f" {path!r}"
        raise SpecError([f"{key}:{shown}: is no place for data ({error})"]) from None


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


def num_samples(spec: RunSpec, data: Data | None) -> int:
    """How many samples make an epoch."""
    match data:
        case Tokens():
            return data.windows.num_samples
        case Mixture():
            return data.num_samples
        case None:
            return spec.data.samples


def _check_room(spec: RunSpec, num_samples: int, found: str) -> None:
    needed = spec.recipe().sequences_per_step
    if num_samples < needed:
        product = "world_size x micro_batch x grad_accum"
        raise SpecError([f"{found}, but one step takes {needed:,} ({product}); expected as many"])


def _index(store: Store) -> TokenIndex:
    where = f"data: {store.url}/{INDEX}"
    try:
        index = _index_in(get_bounded(store, INDEX, most_bytes=MOST_INDEX_BYTES), store, where)
    except TooLarge as error:
        raise DataError(f"{where}: {error}; pack the data again") from None
    except Missing:
        index = _index_of_parquet(store)
    if not index.num_tokens:
        raise DataError(f"{where}: names no tokens; pack some")
    return index


def _index_in(data: bytes, store: Store, where: str) -> TokenIndex:
    """What an ``index.json`` tells: ours, or that of MDS shards."""
    if b'"mds"' in data:
        from jobs.training.data.formats.mds import index_of_mds

        if index := index_of_mds(store, data, where):
            return index
    index = from_json(data, where)
    _check_raw(index, where)
    return index


def _check_raw(index: TokenIndex, where: str) -> None:
    named = [shard.name for shard in index.shards if shard.name.lower().endswith(DECODED)]
    if named:
        raise DataError(
            f"{where}: names {named[0]}, expected .bin files, which are nothing but ids; Parquet files are "
            f"found without an index: move {INDEX} away, or pack the data again"
        )


def _index_of_parquet(store: Store) -> TokenIndex:
    """The index of Parquet files of ids that other tools made, in the order of their names."""
    listed = list(islice(store.contents(), MOST_FILES + 1))
    if len(listed) > MOST_FILES:
        raise DataError(f"data: {store.url}: has more than {MOST_FILES:,} files; expected a folder of tokens")
    names = sorted(name for name in listed if _is_parquet(name))
    if strange := [name for name in names if not (is_name(name) and name.endswith(PARQUET))]:
        raise DataError(
            f"data: {store.url}/{strange[0]!r:.80}: expected letters, digits and ._+=@- in its name and "
            f"{PARQUET} at its end; rename it, or move it elsewhere"
        )
    if not names:
        raise DataError(
            f"data: {store.url}/{INDEX} is not there, nor Parquet files of ids; expected a folder that "
            f"`longhaul pack INPUT... --out {store.url}` wrote"
        )
    from jobs.training.data.formats.parquet_tokens import describe

    with ThreadPoolExecutor(_NUM_READERS) as pool:
        shards = tuple(pool.map(lambda name: describe(store, name), names))
    return TokenIndex(dtype="uint32", shards=shards)


def _is_parquet(name: str) -> bool:
    """Whether the name is that of a Parquet file. Hidden files, such as tools leave behind, are no data."""
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return name.lower().endswith(PARQUET) and not is_hidden


def _is_decoded(index: TokenIndex) -> bool:
    return any(shard.name.endswith(DECODED) for shard in index.shards)


def _cache_limits(spec: RunSpec, index: TokenIndex) -> ShardCacheLimits | None:
    """The limits of the shard cache; None if shards are read in place. Parquet always needs a folder to be
    decoded in.
    """
    local = spec.data.local
    if local.dir is None and not _is_decoded(index):
        return None
    folder, saves = local.dir or gettempdir(), spec.checkpoint.local.dir
    if saves is not None and (problem := folder_conflict(folder, saves)):
        raise SpecError([problem])
    return ShardCacheLimits(folder=folder, limit_bytes=round(local.gib * 2**30))


def _wrong_vocabulary(spec: RunSpec, store: Store, index: TokenIndex) -> Iterator[str]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What lies in the store in a shard's place: its version, and what is wrong with its size."""

    version: str | None = None
    problem: str | None = None


def _looks(store: Store, index: TokenIndex) -> list[_Look]:
    width, versions = DTYPE_BYTES[index.dtype], versions_of(store)
    # Several at once: of ten thousand shards on a disk, to hand each to a reader takes longer than to look.
    size = max(1, len(index.shards) // (16 * _NUM_READERS))
    parts = [index.shards[first : first + size] for first in range(0, len(index.shards), size)]
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        looks = pool.map(lambda part: [_look(store, versions, shard, width) for shard in part], parts)
        return [look for part in looks for look in part]


def _wrong_sizes(looks: list[_Look]) -> list[str]:
    """At most one line: a shard that is missing or whose length differs from the index, and how many more
    there are.
    """
    found = [look.problem for look in looks if look.problem]
    more = f" (and {len(found) - 1:,} more shards)" if len(found) > 1 else ""
    return [f"{found[0]}{more}; copy it again, or pack the data again"] if found else []


def _look(store: Store, versions: TellsVersions, shard: TokenShard, width: int) -> _Look:
    where, expected = f"data: {store.url}/{shard.name}", shard.num_tokens * width
    try:
        num_bytes, version = versions.look(shard.name)
    except Missing:
        return _Look(problem=f"{where} is not there, but in the index")
    # Of Parquet the footer was read, at the file's end; an MDS index tells the size.
    if num_bytes == expected or shard.name.endswith(DECODED):
        return _Look(version=version)
    differs = "longer" if num_bytes > expected else "shorter"
    return _Look(problem=f"{where} is {differs} than the {shard.num_tokens:,} tokens in its index")
