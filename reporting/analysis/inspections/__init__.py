"""What the checks of a report look at.

Reading order: ``seen`` (what an inspection says), ``speed`` (throughput, step times, scaling, stragglers,
clocks), ``memory`` (limits, prediction, order of strategies), ``losses`` (falling, and equal),
``sample_size`` (how much the runs can say at all).
"""
