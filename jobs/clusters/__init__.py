"""``longhaul cluster``: see a running cluster, or try a mixed one on this machine.

Reading order: ``arguments``, ``command``, ``tables``.
"""
