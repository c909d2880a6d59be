"""One training as its parts tell it.

Reading order: ``summary`` (what a report knows of it), ``reading`` (its parts), ``superseded`` (which
steps count), ``clock_alignment``, ``timeline``, ``ledger`` (where the time went), ``recoveries`` (what
restarts cost), ``downsampling``, ``summarising``.
"""
