"""What the table says, and how sure we are.

Reading order: ``statistics`` (intervals, tests, verdicts), ``cells`` (rows as cells), ``comparing`` (cells
of two groups), ``checks`` with their ``inspections`` and ``advice``, ``suspect_nodes``, ``patterns`` (what
each strategy is good for); ``findings`` (what a report says, as data), ``conclusions`` (how the table
becomes them). For those who show it: ``formatting``, ``selection`` (where not everything fits),
``environments`` (machines side by side), ``time_lost``, ``method`` (what numbers mean).
"""
