"""What ranks read.

Reading order: ``synthetic`` (tokens that follow from the seed), ``samples`` (of a long run), ``shards``
(of tokens), ``shard_cache`` (on a node's disk), ``parquet_tokens``, ``prefetch_pool`` (threads that read
ahead).
"""
