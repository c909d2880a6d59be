"""The forkserver: an idle process that has loaded everything, from which workers are forked.

Reading order: ``beside_driver`` (one on the driver's machine, beside a private Ray); ``pool`` (one for each
node that a long run uses, kept by the driver) and ``actor`` (on the node); ``server`` (the process that
forks), ``client`` (what Ray starts as a worker); ``ahead`` (workers that wait for the next attempt) and
``rehearsal`` (how Ray calls their environments).
"""
