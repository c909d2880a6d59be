"""Preflight: may this cluster, this store and this run be trusted? One table, findings, an exit code.

Reading order: ``arguments``, ``command`` (the story), ``examination`` (all that is seen, as data);
``this_machine`` alone, or a ``survey`` of all nodes of a cluster: ``node_sessions`` with a ``node_actor``
on each, and ``link_tests`` between them; ``forecast`` (the space a run will take); from what is seen to
findings: ``node_checks``, ``cross_node_checks``, ``store_checks``; ``text`` (for people and programs).
"""
