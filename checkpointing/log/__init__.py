"""The commit log: what counts as saved, and who may write.

Reading order: ``history`` (what can happen, and what is known after it), ``codec`` (records as text),
``log``.
"""
