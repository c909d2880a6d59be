"""SAFE: bytes that survive. Knows nothing of jobs, models or vendors.

Reading order: ``errors``; ``store`` (objects by name, whole or not at all), ``objects`` (the same on object
storage) with ``buckets`` (from a url to a store), ``transfers``, ``answers``, ``uploads`` and ``patience``.
The log: ``history`` (what can happen and what is known after it), ``codec`` (as text), ``log``. A
generation: ``manifest`` (what it consists of), ``retention`` (which are kept), ``choice`` (which one to go
on from), ``repository`` (a run's generations in a store). Saving: ``snapshot`` (live state into memory of
our own), ``cadence`` (when), ``saves``, ``near`` (the nodes' disks), ``publisher`` (into the store, with the
other ranks), ``writer`` (in the background). Loading: ``reshard`` (who needs which bytes), ``digests``,
``loading``. Looking after it: ``audit`` (what is wrong), ``leftovers`` (what is of no use any more),
``probing`` (whether a store can be relied on). ``hooks``: Ray Train may know of it, too.
"""
