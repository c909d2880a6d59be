"""The forkserver: an idle process that has loaded everything, from which workers are forked.

Reading order: ``beside_driver`` (one for a sweep, on the driver's machine); ``pool`` (one for each node of a
long run, kept by the driver) and ``actor`` (on the node); ``server`` (the process that forks), ``client``
(what Ray starts as a worker).
"""
