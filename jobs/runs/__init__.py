"""One long run: ``longhaul train``, ``status`` and ``stop``.

Reading order: ``arguments``; ``train`` (the story); what is checked first: ``token_check``,
``resume_checks``, ``driver_presence`` (another driver at work); ``attempts``, each with its ``tasks``;
``stop_signals``, ``stop``, ``resume_command``; ``supervisor`` (starts drivers again), each a
``driver_process`` or a ``driver_job``; ``status``.
"""
