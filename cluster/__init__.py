"""WHERE: what machines there are, and which run goes where. Knows nothing of training.

Reading order: ``inventory`` (the words), ``accelerators`` (what is known of chips), ``placement`` (what
fits where), ``environment`` (what each vendor's workers need); then where an inventory comes from:
``machine`` (this one), or ``grouping`` of labelled nodes: ``config`` (a cluster file), ``live`` (a running
Ray, of which ``nodes`` tells who is there and who was lost); what is to be known of it: ``presence`` (what
is there of what was promised), ``changes`` (nodes lost and returned), ``scores`` (nodes that fail); and
``local``, a private Ray, or ``mixed``, several nodes on this machine: both ``guarded``, for their
``guardian`` ends them if nobody else does. ``variables`` sets some for a while; ``tuning`` says which make
Ray notice what is gone. What a node tells of itself: its ``facts``, found by a ``probe``.

What a device tells of itself while it works: ``readings`` (one look), ``nvml`` and ``amd_smi`` (whom to
ask), ``telemetry`` (a thread that looks), ``watching`` (what the looks at a window say together).
"""
