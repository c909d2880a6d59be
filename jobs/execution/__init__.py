"""What an executor promises, and how a driver judges what its ranks report. Uses no Ray.

Reading order: ``executor`` (the protocol), ``resources`` (what a worker group asks for), ``messages`` (what
ranks and driver tell each other) on a ``board``; ``monitor`` (a worker group while it works) and
``session_jobs`` (a sweep's cells on it), ``hang_detection``, ``rank_failures`` (which rank's report counts),
``causes`` and ``outcomes`` (what became of an attempt).
"""
