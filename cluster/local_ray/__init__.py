"""A Ray of our own on this machine, which ends with the process that started it.

Reading order: ``private_ray`` (one node), ``simulated`` (several, as a cluster file promises), both in a
``marked_directory``, which the ``reaper`` clears if nobody else does. ``variables`` sets some for a while;
``timeouts`` are those by which Ray notices what is gone.
"""
