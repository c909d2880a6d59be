"""Saves and restores a training's state.

Reading order: ``saved_run`` (whose state it is), ``saving``, ``restoring``
(``choosing``, ``bringing``, ``loading``), ``pretrained`` (starts a run from
given weights), ``own_state`` (of a training without an engine; ``plain_state`` says what it may hold,
``sharded`` which part of a tensor is a rank's), ``random_state``, ``rank_mailbox`` (messages between ranks
about saves), ``near_tiers`` (the hosts' memory and disks), ``sharing_memory`` and ``share_copies`` (copies in
other hosts' memory).
"""
