"""What one NVIDIA or AMD device shows of all that can run on it: ``make gpu``.

Nothing here has run on a device yet. What a CPU can run of it, ``tests/live/workers/test_device_checks.py``
runs there. A check does its work in a process of its own, so a broken device costs one check, and says in one
line what it saw.
"""
