"""Results are the table of all runs, and the files that hold it.

Reading order: ``formulas`` (what each number means), ``records`` (what one run stores), ``settings`` (what
exchanges time for memory), ``redaction`` (secrets that are never stored), ``rows`` and ``columns`` (of every
table), ``result_rows`` (a result as a row), ``imported`` (results of other tools), ``device_rates`` (how fast
devices multiply), ``node_scores`` (which nodes fail), ``gathering`` (all results of a store), ``skipped``
(files that could not be read) and ``unfinished`` (sweeps that miss results), ``tables`` (rows as files),
``publishing`` (a report's files, and copies of them).
"""
