"""Measures one cell: ``largest`` (finds its micro-batch, where that is asked), ``measure`` (the run itself),
``feed`` (its batches), ``timing`` (its step times).

What is profiled after the timed window: ``profiling`` (the steps), ``spans`` (what is made of them),
``trace_file`` (the trace).
"""
