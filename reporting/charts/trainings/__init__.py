"""Pictures of long runs: ``traces`` (shortens long series), ``losses``, ``goodput``, ``devices`` (power and
clocks).
"""
