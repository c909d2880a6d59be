"""``longhaul sweep`` measures the runs that a sweep wants and its store does not have yet.

Reading order:

- ``arguments``, ``command`` (the command itself);
- ``grid`` (cells), ``sessions``, ``memory_forecast``, ``plan``, ``work_queues``: decided before a start;
- ``search`` (the largest micro-batch that fits; ``--best``);
- ``bookkeeper``, ``results``: result rows, which are made in ``rows``;
- ``tables``, ``score_table``, ``live_view``, ``sweep_clock`` (the time that is left): output for people;
- ``progress_display``: the same for those who see the store alone.
"""
