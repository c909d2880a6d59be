"""What a training leaves while it runs.

Reading order: ``attempts`` (what is recorded, as data), ``recorder`` and its ``outbox`` (in a worker),
``parts`` (the files), ``scalars`` and ``sinks`` (for those who watch), ``steady_clock``.
"""
