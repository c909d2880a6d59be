"""Decodes the ids of a shard that is no row of ids itself."""

from collections.abc import Iterator

from jobs.training.data.formats import mds, parquet_tokens
from jobs.training.data.shards import Copyable
from jobs.training.task.token_index import MDS, TokenShard


def ids_of(store: Copyable, shard: TokenShard) -> Iterator[bytes]:
    """All ids as little-endian uint32, in pieces."""
    return mds.ids_of(store, shard) if shard.name.endswith(MDS) else parquet_tokens.ids_of(store, shard)
