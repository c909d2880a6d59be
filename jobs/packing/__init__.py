"""``longhaul pack``: text, JSONL and Parquet become token shards that a long run reads.

Reading order: ``arguments``, ``command``; the input's ``pieces``, the ``documents`` in them, their ids by
``tokenizing``, and one piece's ``shard``. Ray carries them out
in ``ray_pack``. The same input gives the same bytes.
"""
