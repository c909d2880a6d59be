"""The table.

Reading order: ``formulas`` (what each number means), ``records`` (what a run leaves behind), ``redaction``
(what must not be left behind), ``rows`` and ``columns`` (of every table), ``result_rows`` (a result as a
row), ``imported`` results, ``device_rates`` (what devices can do), ``node_scores`` (which nodes fail),
``gathering`` (all of a store) and what was ``skipped``, ``tables`` (rows as files), ``publishing`` (a
report's files, and copies of them).
"""
