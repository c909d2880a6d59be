"""What lies in a place of tokens: the index, by whatever tool it was written, and beside it the shards. One
that is missing is told of, and a ``.bin`` that isn't as long as the index says.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, is_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.versions import TellsVersions, versions_of
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.training.data.formats.bin_files import BIN, IDX, index_of_bin
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

_NUM_READERS = 16
# A folder of Parquet files is listed, and a listing may have no end.
MOST_FILES = 1_000_000


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


def is_decoded(index: TokenIndex) -> bool:
    """Whether ids have to be decoded before they are read, as those of Parquet and MDS."""
    return any(shard.name.endswith(DECODED) for shard in index.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What lies in the store in a shard's place: its version, and what is wrong with its size."""

    version: str | None = None
    problem: str | None = None


def look_at_shards(store: Store, index: TokenIndex) -> list[Look]:
    """In the order of the index."""
    width, versions = DTYPE_BYTES[index.dtype], versions_of(store)
    # Several at once: of ten thousand shards on a disk, to hand each to a reader takes longer than to look.
    size = max(1, len(index.shards) // (16 * _NUM_READERS))
    parts = [index.shards[first : first + size] for first in range(0, len(index.shards), size)]
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        looks = pool.map(lambda part: [_look(store, versions, shard, width) for shard in part], parts)
        return [look for part in looks for look in part]


def _look(store: Store, versions: TellsVersions, shard: TokenShard, width: int) -> Look:
    where, expected = f"data: {store.url}/{shard.name}", shard.num_tokens * width
    try:
        num_bytes, version = versions.look(shard.name)
    except Missing:
        return Look(problem=f"{where} is not there, but in the index")
    # Of Parquet the footer was read, at the file's end; an MDS index tells the size.
    if num_bytes == expected or shard.name.endswith(DECODED):
        return Look(version=version)
    differs = "longer" if num_bytes > expected else "shorter"
    return Look(problem=f"{where} is {differs} than the {shard.num_tokens:,} tokens in its index")


def wrong_sizes(looks: list[Look]) -> list[str]:
    """At most one line: a shard that is missing or whose length differs from the index, and how many more
    there are.
    """
    found = [look.problem for look in looks if look.problem]
    more = f" (and {len(found) - 1:,} more shards)" if len(found) > 1 else ""
    return [f"{found[0]}{more}; copy it again, or pack the data again"] if found else []
