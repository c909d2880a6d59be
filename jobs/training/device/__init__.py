"""What a rank sits on: ``rank_device``, ``identities`` (that ranks sit on distinct ones), ``device_sample``
(what a device tells, as records have it), ``environment``, ``host_memory``.
"""
