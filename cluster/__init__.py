"""WHERE: which machines there are, and which run goes where. This package knows nothing of training.

Reading order: ``inventory`` (the terms), ``accelerators`` (known facts about chips), ``placement`` (what
fits where), ``environment`` (variables that each vendor's workers need).

An inventory comes from ``this_machine``, or from ``grouping`` of labelled nodes. Those nodes come from a
``cluster_file`` or a ``live`` Ray cluster, whose present and lost ``nodes`` can be listed. ``yaml_file``
reads what people wrote, and the bytes of any file that they name.
``promised_vs_live`` compares two inventories. ``ray_internals`` is the only door to Ray's private names.
``run_key`` signs the messages between the processes of a run. ``signals`` keeps Ray alive when everything
is asked to stop. ``set_up`` makes an environment where there is none yet.

Folders: ``telemetry`` (a device's readings while it works), ``probe`` (measurements of a node),
``fingerprint`` (what a node's speed depends on and nobody writes down), ``local_ray`` (our own Ray on this
machine), ``slurm`` (what runs on the nodes of a Slurm job), ``gate`` (who comes to the ports where ranks
meet).
"""
