"""Processes that have loaded everything and wait to be forked into workers.

Reading order: ``pool`` (one for each node, kept by the driver), ``actor`` (on the node), ``server`` (the
process that forks), ``client`` (what Ray starts as a worker).
"""
