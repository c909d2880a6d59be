"""``longhaul sweep``: what is wanted minus what is finished.

Reading order: ``arguments``, ``command`` (the story); ``grid`` (cells), ``memory_forecast``, ``plan``,
``work_queues``: decided before anything starts; ``bookkeeper``, ``result_record``, ``metrics``, ``energy``,
``source_version``, ``results``: rows; ``tables``, ``score_table``, ``live_view``: for people.
"""
