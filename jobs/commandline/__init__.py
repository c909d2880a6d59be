"""What all commands share: ``options`` (flags), ``exit_codes`` (codes, and how an error becomes one),
``usage_error``, ``store_location`` (where relative paths start), ``text_table``, ``output`` (whose reader may
have ended), ``interrupts`` (signals that mean Ctrl-C), ``process_exit``.
"""
