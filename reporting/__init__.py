"""SEEN: numbers that can be trusted.

Reading order: ``formulas`` (what each number means), ``records`` (what a run leaves behind),
``redaction`` (what must not be left behind), ``rows`` (the table), ``results`` (a result as a row),
``machines`` (what devices can do), ``gathering`` (all of a store), ``findings`` (what a report says),
``conclusions`` (how the table becomes them), ``tables`` (rows as files), ``publishing`` (a report's files,
and copies of them).

``statistics`` (intervals, tests, verdicts), ``cells`` (rows as cells), ``comparing`` (cells of two groups).

What a long run records: ``columns`` (every column of every table), ``attempts`` (what is recorded, as data),
``recorder`` and its ``outbox`` (in a worker), ``scalars`` and ``live`` (for those who watch), ``parts`` (the
files), ``run_parts`` (reading them), ``survival`` (which steps count), ``ledger`` (where the time went),
``clocks`` (of those who told it, and ``steady`` ones), ``happenings`` and ``thinning``, ``recoveries`` (what
restarts cost), ``long_runs`` (what a report says of it).
``importers`` read older results of other tools.

``checks`` with their ``inspections`` and ``advice`` judge the cells; ``charts`` (findings as pictures).

What people read: ``words`` (numbers and names), ``selection`` (what is shown where not everything fits),
``setups`` (machines side by side), ``nodes`` (which of them fail), ``patterns`` (what each strategy is good
for), ``method`` (what numbers mean), ``markdown`` with its ``markdown_parts`` and ``goodput``, and
``page`` (both reports).
"""
