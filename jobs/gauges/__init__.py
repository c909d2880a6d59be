"""What a driver shows of its run to Prometheus, through Ray's own metrics.

Reading order: ``metrics`` (which there are), ``run_gauges`` (their values), ``emitter`` (a thread that passes
them on), ``ray_gauges`` (to Ray).
"""
