"""Inspections are what the checks of a report look at.

Reading order: ``seen`` (the result of an inspection), ``speed`` (throughput, step times, scaling, stragglers,
clocks), ``numbers`` (whether those of one run can be true together), ``memory`` (limits, prediction, order of
strategies), ``losses`` (falling, and equal), ``sample_size`` (whether there are enough runs, measured here),
``time_order`` (whether time may be the reason).
"""
