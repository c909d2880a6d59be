"""Preflight: may this cluster, this store and this run be trusted? One table, findings, an exit code.

Reading order: ``arguments``, ``story`` (the command as a page), ``examination`` (all that is seen, as data),
``local`` (this machine alone) or ``asking`` (all nodes of a cluster, by ``visiting`` each with an ``envoy``
and ``linking`` them), ``forecast`` (the space a run will take), ``judging`` (what is seen -> findings; over
nodes, ``groups`` and ``places``), ``text`` and ``plain`` (for people and programs).
"""
