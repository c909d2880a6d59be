"""Finds out what goes wrong in a training.

Reading order: ``failures`` (an exception as a row's failure), ``device_errors`` (what words of CUDA's and
HIP's libraries tell), ``problems`` (errors that ranks send each other), ``postmortem`` (of a process that has
ended or hangs), ``loss_guard`` (ends an attempt whose loss went wrong),
``late_figure`` (of a device that is behind), ``rank_speed`` (how fast each rank's device is).
"""
