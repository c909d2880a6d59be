"""A run's generations: which there are, which are kept, which one to go on from.

Reading order: ``repository`` (a run's generations in a store), ``retention`` (which are kept), ``choice``
(which one to resume), ``unnamed`` (whole ones that the log does not name), ``audit`` (what is wrong),
``garbage`` (what is of no use any more).
"""
