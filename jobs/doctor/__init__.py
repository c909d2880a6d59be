"""``longhaul doctor`` checks a cluster, a store and a run before training: one table, findings, an exit code.

Reading order:

- ``arguments``, ``command`` (the command itself), ``examination`` (all observations, as data);
- ``this_machine``: asks this machine alone;
- ``survey``: asks all nodes of a cluster, through ``node_sessions`` with one ``node_actor`` per node, and
  ``link_tests`` between the nodes, in turns as ``pairing`` says;
- ``forecast``: the space that a run will take;
- ``node_checks``, ``cross_node_checks``, ``store_checks``, ``tested_versions``: turn observations into
  findings;
- ``text``: output for people and programs;
- ``security``: another question, whether others could come in.
"""
