"""``longhaul pack`` turns text and conversations into token shards that a long run reads.

The same input gives the same bytes. Reading order:

- ``arguments``, ``command``;
- ``inputs`` (a folder: stores, standard input, splits of data sets), ``sources`` (the input files);
- ``files_table`` (what is packed as what);
- ``pieces`` (how the input is cut), ``hold_out`` (which documents are for evaluation);
- ``formats`` (a folder: what files hold), ``documents`` (the texts of a piece);
- ``models`` (a folder: tokenizers of other libraries), ``tokenizing`` (text to ids);
- ``long_texts`` (in parts), ``shard`` (packs one piece);
- ``chat`` (a folder: the same for conversations);
- ``work`` (packs the pieces one by one), ``ray_pack`` (packs them all at once, with Ray).
"""
