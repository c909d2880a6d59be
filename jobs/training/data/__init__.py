"""The samples and tokens that ranks read.

Reading order: ``synthetic`` (tokens that follow from the seed), ``samples`` (of a long run),
``sample_source`` (what they are
read from), ``mixture`` (which source stands at a position), ``mixed_source`` (reads from several),
``conversations`` (rows of chat data), ``documents`` (rows of text that are several documents), ``shards``
(reads tokens from shards), ``shard_check`` (compares their bytes), ``shard_ledger`` (keeps with the run what
was compared), ``shard_cache`` (keeps shards on a node's disk), ``copy_seals`` (what its copies were when they
were compared), ``kept_files`` (local files that stay open between reads), ``prefetch_pool`` (threads that
read ahead). Files of other tools are in ``formats``.
"""
