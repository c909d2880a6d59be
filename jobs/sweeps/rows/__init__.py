"""What one run's row holds.

Reading order: ``result_record`` (a run and its outcome as a row), ``metrics`` (the user's own), ``energy``,
``source_version`` (which code measured it).
"""
