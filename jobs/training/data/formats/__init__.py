"""Files of ids that other tools wrote.

Reading order: ``bin_files`` (nanoGPT's and Megatron's, which are shards as they are), ``decoding`` (the
ids of others), ``parquet_tokens``, ``mds`` (MosaicML Streaming's), ``stored_file`` (what both read from).
"""
