"""What one NVIDIA or AMD device shows of all that can run on it: ``make gpu``.

It has run on an H200, and on no AMD device. What a CPU can run of it is run there by
``tests/live/workers/test_device_checks.py``. A check does its work in a process of its own, so a broken
device costs one check, and says in one line what it saw.
"""
