"""The models, whose shapes and parameter counts are in ``jobs.training.task.presets``.

Reading order: ``decoder`` with ``attention`` (which kernel), ``head`` (the loss), ``checkpointing`` (what the
backward pass computes again), ``compiling`` and ``fp8`` (the blocks' products), ``init`` (the first weights),
``hugging_face`` (a preset as Hugging Face's ``config.json`` and tensor shapes), ``weights`` (pretrained
weights in files).
"""
