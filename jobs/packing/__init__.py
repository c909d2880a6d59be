"""``longhaul pack`` turns text and conversations into token shards that a long run reads.

The same input gives the same bytes. Reading order:

- ``arguments``, ``command``;
- ``pieces`` (how the input is cut), ``documents`` (the texts of a piece), ``files_table`` (what is packed);
- ``tokenizing`` (text to ids), ``long_texts`` (in parts), ``shard`` (packs one piece);
- ``chat`` (a folder: the same for conversations);
- ``ray_pack`` (packs all pieces with Ray).
"""
