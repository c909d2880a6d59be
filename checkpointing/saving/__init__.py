"""Saves in the background, which cost the training one memory copy.

Reading order: ``cadence`` (when), ``snapshot`` (live state into memory of our own), ``save`` (one save),
``local_tier`` (the nodes' disks), ``publisher`` (into the store, with the other ranks), ``writer`` (the
thread).
"""
