"""``longhaul``, also as ``python -m jobs.cli``: ``arguments`` is the whole command line, ``__main__`` calls
each command.
"""
