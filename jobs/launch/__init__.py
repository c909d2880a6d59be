"""Worker groups through Ray Train: the only place of this room that drives Ray.

Reading order: ``cells`` (a sweep's sessions), ``attempts`` (one attempt of a long run), ``train_v2`` (what we
change about Ray Train for both), ``backstage`` (what a driver keeps between attempts), ``parents`` (of the
next one's processes, each with a ``guard``), ``parent`` and ``child`` (the two sides of a fork), ``on_nodes``
(what is asked of a worker's node); ``job_server`` (a driver as a job, for its keeper).
"""
