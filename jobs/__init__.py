"""WHAT: the commands that a user runs. ``sweep``, ``train`` and ``report`` are the entries for
``ray job submit``; ``cli`` has all commands.

The layers from the top. Each imports only the layers below it:

- ``watching``: a run or a sweep while it goes on, for people;
- ``first_spec`` (writes a spec that fits), ``listing`` (what a store holds), ``dataset`` (what a run reads)
  and ``explaining`` (what a word means);
- ``durable``: what makes a training loop of the user's own a run; ``spares``: processes that wait for it;
- ``runs``: one long run, from its spec to its end; ``slurm``: either of both as a job of Slurm;
- ``sweeps`` (many cells), ``reports``, ``checkpoints``, ``packing``, ``doctor`` and ``clusters``: one command
  each;
- ``spec_schema``: what a user's spec file may contain;
- ``recovery`` (what to do after a failure), ``alerts``, ``gauges`` (for Prometheus), and ``launch`` (through
  Ray Train, ``torchrun`` or in this process);
- ``execution`` (the executor contract, and how reports of ranks are interpreted; imports no Ray) and
  ``run_progress`` (what a driver knows and publishes about its run);
- ``training``: what happens inside a worker;
- ``commandline``: what all commands share.
"""
