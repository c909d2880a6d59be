"""``longhaul ...``, also as ``python -m jobs.cli``: ``arguments`` builds the whole command line, ``__main__``
calls the command. ``first_steps`` is what ``longhaul`` alone says, ``version`` what ``--version`` says,
``completion`` what a shell needs for the Tab key, and ``old_libraries`` what stops a start.
"""
