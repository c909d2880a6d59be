"""``longhaul``, also as ``python -m jobs.cli``: ``arguments`` builds the whole command line, ``__main__``
calls the command.
"""
