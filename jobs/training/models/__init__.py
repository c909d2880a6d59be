"""The models, whose shapes and parameter counts are in ``jobs.training.task.presets``.

Reading order: ``decoder`` with ``attention`` (which kernel), ``head`` (the loss), ``checkpointing`` (what the
backward pass computes again), ``compiling`` and ``fp8`` (the blocks' products), ``init`` (the first weights),
``marking`` (how far a device is in them), ``first_calls`` (why all digits of a cosine are right).
Files: ``hugging_face`` (a shape from and to ``config.json``, and tensor shapes) with ``unsupported`` (what
other models compute), ``config_file`` with ``json_file`` (reading it from a stranger), ``weights``
(pretrained weights in files).
"""
