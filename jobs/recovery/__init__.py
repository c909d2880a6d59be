"""What follows a failed attempt.

Reading order: ``loop`` (attempts one after another; a supervisor's drivers too), ``policy`` (pure: what to do
next), ``journal`` (how attempts ended, also those of earlier drivers), ``rollback`` (to before a bad loss),
``last_clean`` (the same after silent corruption), ``parted_nodes`` (whether those that did not reach each
other do so again), ``world_size`` and ``resizing`` (fewer or more ranks).
"""
