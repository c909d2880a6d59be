"""A Ray of our own on this machine, which ends with the process that started it.

Reading order: ``private_ray`` (one node), ``simulated`` (several nodes, as a cluster file promises). Both
live in a ``marked_directory``, which the ``reaper`` clears if the process that made it does not.
``worker_start`` and ``agent_stand_in`` stand in place of Ray's own scripts, which cost more.
``variables`` sets environment variables for a while; ``timeouts`` decide how soon Ray notices that
something is gone.
"""
