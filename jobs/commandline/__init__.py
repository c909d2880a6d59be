"""What all commands share: ``options`` (flags), ``exit_codes`` (codes, and how an error becomes one),
``usage_error``, ``set_values`` (values of ``--set``, and secrets), ``own_file`` (a file with a secret),
``store_location`` (where relative paths start), ``store_waits`` (a store that is away),
``text_table``, ``output`` (whose reader may have ended), ``interrupts`` (signals that mean Ctrl-C),
``owner`` (a process by a name that no other one has), ``process_exit``.
"""
