"""What runs on the nodes of a Slurm job. The job's script (``jobs/slurm/job.sh``) starts each.

Reading order: ``head`` (the job's own Ray), ``worker`` (a node joins it), ``wait_for_nodes`` (until all
have), ``addresses`` (how the nodes reach each other).
"""
