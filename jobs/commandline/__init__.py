"""What all commands share: ``options`` (flags), ``usage_error``, ``store_location`` (where relative places
start), ``text_table``, ``process_exit``.
"""
