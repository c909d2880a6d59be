"""Long runs are trainings, reconstructed from the parts that they recorded.

Reading order: ``summary`` (what a report knows of a run), ``reading`` (its parts), ``superseded`` (which
steps count), ``step_totals``, ``clock_alignment``, ``timeline``, ``ledger`` (where the time went),
``recoveries`` (what restarts cost), ``stretches`` (in which groups it trained), ``downsampling``,
``summarising``.
"""
