"""Recording is what a training writes about itself while it runs.

Reading order: ``attempts`` (what is recorded, as data), ``recorder`` and its ``outbox`` (in a worker),
``parts`` (the files), ``read_data`` (which data were trained on), ``scalars``, ``sinks`` and ``mlflow`` (live
charts in other tools), ``steady_clock``.
"""
