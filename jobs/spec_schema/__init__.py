"""What a user's file may say, as strict as can be.

Reading order: ``file`` (YAML, ``--set``, where a problem is), ``sweep_spec``, ``run_spec`` with its
sections ``run_data``, ``run_checkpoints`` and ``run_recovery``; ``compatibility`` (what may change between
two starts).
"""
