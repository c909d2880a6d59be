"""Saves in the background; each save blocks the training only for one memory copy.

Reading order:

- ``cadence`` decides when to save.
- ``snapshot`` copies live state into our own memory.
- ``save`` describes one save and its outcome.
- ``findings`` tells what is wrong beside a save that ended well.
- ``budget`` says how much of a node's disk saves may take, and what goes first.
- ``own_store`` uses nothing on a node's disk but what is this user's own.
- ``local_tier`` keeps saves on the nodes' disks.
- ``memory_tier`` keeps the newest in the hosts' memory, as far as ``memory_limit`` says that there is room;
  ``peers`` says which hosts keep copies of which, and ``pace`` how fast they are sent.
- ``publishing`` makes a save durable in the store, together with the other ranks.
- ``writer`` owns the threads.
"""
