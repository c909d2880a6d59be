"""``longhaul slurm`` writes a script for Slurm that runs a sweep or a long run to its end, and submits it.

Reading order: ``arguments``, ``command``, ``work`` (what of a spec the job needs), ``options`` (Slurm's words
that a user gives), ``script`` (the writer, pure), ``job.sh`` (what all jobs have in common), ``progress``
(what a job asks before it queues itself again). What runs on the nodes is ``cluster.slurm``.
"""
