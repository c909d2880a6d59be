"""What a user's file may say, as strict as can be.

Reading order: ``file`` (YAML, ``--set``, where a problem is), ``sweep_spec``, ``run_spec`` with its
sections ``run_data``, ``run_checkpoints`` and ``run_recovery``; ``stored_spec`` (what stands in the
store with a run), ``compatibility`` (what may change between two starts).
"""
