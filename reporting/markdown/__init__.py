"""``report.md``: ``report``, its ``parts``, and its ``long_runs``."""
