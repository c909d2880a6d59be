"""WHERE: what machines there are, and which run goes where. Knows nothing of training.

Reading order: ``inventory`` (the words), ``accelerators`` (what is known of chips), ``placement`` (what
fits where), ``environment`` (what each vendor's workers need). Where an inventory comes from:
``this_machine``, or ``grouping`` of labelled nodes, from a ``cluster_file`` or a ``live`` Ray, of which
``nodes`` tells who is there and who was lost. ``ray_internals`` is the door to Ray's private names. What is
to be known of an inventory: ``promised_vs_live``. ``run_key`` signs what the processes of a run tell each
other.

Folders: ``telemetry`` (what a device tells while it works), ``probe`` (what a node tells of itself),
``local_ray`` (a Ray of our own on this machine).
"""
