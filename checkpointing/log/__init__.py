"""The commit log: what counts as saved, and who may write.

Reading order: ``history`` (the events, and the view after them), ``codec`` (records as text),
``bounded_json`` and ``field_types`` (what a stranger's text may hold), ``signing`` (a MAC on each of them, if
the store has a key), ``trust`` (which of them are believed), ``log``, ``folding`` (what was given up, for
readers who do not read the whole log).
"""
