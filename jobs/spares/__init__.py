"""Spare processes for a training loop of the user's own under ``torchrun``. See docs/own-loop.md.

``torchrun --max-restarts 3 -m -- jobs.spares SCRIPT ARGUMENTS`` starts each rank out of a process that waits
with everything loaded, now and after each failure. Reading order: ``__main__`` (what torchrun starts as a
rank), ``server`` (the process that waits), ``script`` (what the user's script loads, and how it is run).
"""
