"""One long run: the commands ``longhaul train``, ``status`` and ``stop``.

Reading order: ``arguments``; ``train`` (the whole command); the checks before anything starts:
``data_check`` (finds the data), ``resume_checks`` and ``driver_presence`` (is another driver active);
``attempts``, each with its ``tasks``; ``stop_signals``, ``stop``, ``resume_command``; ``supervisor``
(restarts drivers), each driver a ``driver_process`` or a ``driver_job``; ``listening`` (does a driver
still report), ``status``; ``dry_run``, which starts nothing; ``data_read`` (what the data hold, for people).
"""
