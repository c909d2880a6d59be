"""WHAT: the commands that a user runs. ``sweep``, ``train`` and ``report`` are the entries for
``ray job submit``; ``cli`` has all commands.

Each layer imports only the layers below it, from the top:

- ``runs``: one long run, from its spec to its end;
- ``sweeps`` (many cells), ``reports``, ``checkpoints``, ``packing``, ``doctor`` and ``clusters``: one command
  each;
- ``spec_schema``: what a user's spec file may contain;
- ``recovery`` (what to do after a failure), ``alerts``, and ``launch`` (through Ray Train, ``torchrun`` or in
  this process);
- ``execution`` (what an executor promises, and how it interprets the reports of ranks; imports no Ray) and
  ``run_progress`` (what a driver knows and publishes about its run);
- ``training``: what happens inside a worker;
- ``commandline``: what all commands share.
"""
