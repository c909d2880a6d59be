"""A run's generations: which exist, which are kept and which one to resume.

Reading order: ``repository`` (a run's generations in a store), ``retention`` (which are kept), ``choice``
(which one to resume), ``unnamed`` (whole generations that the log does not name), ``audit`` (what is
wrong), ``garbage`` (objects of no further use).
"""
