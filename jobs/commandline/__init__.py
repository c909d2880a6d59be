"""What all commands share: ``options`` (flags), ``exit_codes`` (and from an error to its code),
``usage_error``, ``store_location`` (where relative places start), ``text_table``, ``process_exit``.
"""
