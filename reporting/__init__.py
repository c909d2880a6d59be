"""SEEN: numbers that can be trusted.

Reading order: ``formulas`` (what each number means), ``records`` (what a run leaves behind),
``redaction`` (what must not be left behind), ``rows`` (the table), ``gathering`` (all of a store),
``findings`` (what a report says), ``conclusions`` (how the table becomes them), ``tables`` (rows as files), ``publishing`` (a report's files, and copies).
"""
