"""SAFE: bytes that survive. Knows nothing of jobs, models or vendors.

Reading order: ``store`` (objects by name, whole or not at all), ``objects`` (the same on object storage);
``snapshot`` (live training state into memory of our own).
"""
