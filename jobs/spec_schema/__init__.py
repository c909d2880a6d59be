"""The schema of a user's spec files: unknown keys and wrong types are errors.

Reading order:

- ``file`` (YAML, ``--set``, error messages), ``model`` (a preset or a ``config.json``), ``sweep_spec``;
- ``combinations`` (which values exclude each other), ``own_loop`` (what ``durable.run`` takes);
- ``run_spec`` with its sections ``run_data``, ``run_checkpoints`` and ``run_recovery``;
- ``stored_spec`` (the spec stored with a run);
- ``compatibility`` (what may change between two starts).
"""
