"""Every parser of something that a stranger can write, under mutated files and a bound of memory.

Reading order: ``parsers`` (each with good files to start from, and the errors that it may raise), ``packing``
(those of what ``longhaul pack`` reads),
``mutations``, ``child`` (the process in which they run), ``test_parsers``.
"""
