"""``longhaul sweep`` measures the runs that a sweep wants and its store does not have yet.

Reading order:

- ``arguments``, ``command`` (the command itself);
- ``grid`` (cells), ``memory_forecast``, ``plan``, ``work_queues``: decided before anything starts;
- ``search`` (the largest micro-batch that fits; ``--best``);
- ``bookkeeper``, ``result_record``, ``metrics``, ``energy``, ``source_version``, ``results``: result rows;
- ``tables``, ``score_table``, ``live_view``: output for people.
"""
