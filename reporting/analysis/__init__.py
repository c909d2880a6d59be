"""Analysis says what the table shows, and how certain that is.

Reading order: ``statistics`` (intervals, tests, verdicts), ``cells`` (rows as cells), ``comparing`` (cells of
two groups), ``checks`` with their ``inspections`` and ``advice``, ``suspect_nodes``, ``patterns`` (what each
strategy is good for); ``findings`` (what a report says, as data), ``conclusions`` (makes findings from the
table). For the modules that show findings: ``formatting``, ``selection`` (what to show if there is too much),
``profiles``, ``time_lost``, ``read_data`` (of long runs), ``method`` (what numbers mean).
``answer`` has what a report says first. ``published`` has what others measured, as a yardstick. ``sides``
says what each side of a comparison ran on, and what else differed. ``costs`` says what tokens cost, where
prices are given.
"""
