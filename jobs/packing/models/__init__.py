"""Tokenizers in other files than a tokenizer.json, each read by its own library.

Reading order:

- ``telling`` (what a file is);
- ``sentencepiece_model``, ``tiktoken_file``.
"""
