"""The models, whose shapes and parameter counts are in ``jobs.training.task.presets``.

Reading order: ``decoder`` with ``attention`` (which kernel), ``head`` (the loss) and ``checkpointing`` (what
the backward pass computes again) and ``compiling``, ``init`` (the first weights), ``hugging_face`` (a preset
as Hugging Face's ``config.json`` and tensor shapes), ``weights`` (pretrained weights in files).
"""
