"""The models. Reading order: ``presets`` (shapes and counts), ``decoder``, ``init`` (the first weights)."""
