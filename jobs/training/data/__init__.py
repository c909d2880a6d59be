"""The samples and tokens that ranks read.

Reading order: ``synthetic`` (tokens that follow from the seed), ``samples`` (of a long run),
``conversations`` (rows of chat data), ``shards`` (reads tokens from shards), ``shard_cache`` (keeps shards on
a node's disk), ``parquet_tokens`` (Parquet files as shards), ``prefetch_pool`` (threads that read ahead).
"""
