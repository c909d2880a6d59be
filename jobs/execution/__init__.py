"""What an executor promises, and what a driver makes of what its ranks tell. Knows no Ray.

Reading order: ``executor`` (the protocol), ``resources`` (what a worker group asks for), ``messages``
(what ranks and driver tell each other) on a ``board``; ``monitor`` (a worker group while it works) and
``session_jobs`` (a sweep's cells on it), ``hang_detection``, ``rank_failures`` (which rank's word counts),
``causes`` and ``outcomes`` (what became of an attempt).
"""
