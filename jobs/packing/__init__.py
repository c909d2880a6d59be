"""``longhaul pack`` turns text, JSONL and Parquet into token shards that a long run reads.

The same input gives the same bytes. Reading order:

- ``arguments``, ``command``;
- ``pieces`` (how the input is cut), ``documents`` (the texts of a piece);
- ``tokenizing`` (text to ids), ``shard`` (packs one piece);
- ``ray_pack`` (packs all pieces with Ray).
"""
