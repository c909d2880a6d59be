"""Files of ids that other tools wrote.

Reading order: ``bin_files`` (nanoGPT's and Megatron's, which are shards as they are), ``parquet_tokens``
(Parquet files, whose ids are decoded).
"""
