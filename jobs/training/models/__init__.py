"""The models. Reading order: ``presets`` (shapes and counts), ``decoder``, ``init`` (the first weights),
``hugging_face`` (how others are told of the shapes), ``weights`` (what others have trained)."""
