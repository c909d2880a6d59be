"""The forkserver: an idle process that has loaded everything, from which workers are forked.

Reading order: ``pool`` (one forkserver for each node, kept by the driver), ``actor`` (on the node),
``server`` (the process that forks), ``client`` (what Ray starts as a worker).
"""
