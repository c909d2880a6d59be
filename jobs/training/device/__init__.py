"""The device and the host that a rank runs on.

Reading order: ``rank_device``, ``identities`` (checks that each rank has a device of its own),
``device_sample`` (telemetry as the records store it), ``environment`` (versions and variables),
``fingerprint`` (of all ranks' machines, with ``torch_settings``), ``repeating`` (the same to the bit),
``host_memory``.
"""
