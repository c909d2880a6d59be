"""What happens inside a worker. Its core does not know Ray, nor anything of a sweep.

Reading order: ``job`` (what is asked), ``context`` (where a rank stands), ``measurement`` (what it
tells), ``benchmark`` (one run as a page) with ``step``, ``timing``, ``feed`` and ``data``, ``precision``,
``devices``, ``environment`` and ``host_memory``; ``models`` and ``strategies``; ``randomness`` (what a
rank would draw next); ``failures`` and ``remains`` (what is learnt when it goes wrong); ``worker`` and
``watch`` (a rank under Ray).
"""
