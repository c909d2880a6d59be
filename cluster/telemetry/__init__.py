"""Telemetry of a device while it works.

Reading order: ``readings`` (one reading), ``nvml`` and ``amd_smi`` (the vendors' interfaces), ``sampler``
(a thread that reads), ``summary`` (the result of all readings in a window).
"""
