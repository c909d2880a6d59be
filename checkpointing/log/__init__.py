"""The commit log: what counts as saved, and who may write.

Reading order: ``history`` (the events, and the view after them), ``codec`` (records as text),
``field_types`` (that a stranger's text is one), ``signing`` (a MAC on each of them, if the store has a key),
``trust`` (which of them are believed), ``log``, ``folding`` (what was given up, for readers who do not read
the whole log).
"""
