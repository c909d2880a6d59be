"""A run's generations: which there are, which are kept, which one to go on from.

Reading order: ``repository`` (a run's generations in a store), ``retention`` (which are kept), ``choice``
(which one to resume), ``audit`` (what is wrong), ``garbage`` (what is of no use any more).
"""
