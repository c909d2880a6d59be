"""Makes a save durable in the store, together with the other ranks.

- ``receipts`` says what a rank, or the leader of a host, tells rank 0.
- ``inbox`` is where messages of other ranks are taken, and those of dropped saves are dropped.
- ``leading`` is what the first rank of each host does for the others there.
- ``publisher`` is a rank's share in it: upload, receipt, commit, read back, make room.
"""
