"""``longhaul cluster`` shows a running cluster, or starts a mixed one on this machine.

Reading order: ``arguments``, ``command``, ``tables``.
"""
