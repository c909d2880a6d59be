"""A fingerprint is what a node's speed depends on and nobody writes down.

Reading order: ``machine`` (the host's settings, and how a device is connected to it), ``libraries`` (as they
are loaded), ``merging`` (all ranks' as one), ``files`` (reads what the kernel tells). Facts are texts by
name; what can't be read is left out.
"""
