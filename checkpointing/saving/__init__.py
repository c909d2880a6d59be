"""Saves in the background; each save blocks the training only for one memory copy.

Reading order: ``cadence`` (when to save), ``snapshot`` (live state copied into our own memory), ``save``
(one save), ``local_tier`` (the nodes' disks), ``publisher`` (into the store, together with the other
ranks), ``writer`` (the threads).
"""
