"""WHAT: the stories. ``sweep``, ``train`` and ``report`` are the entries for ``ray job submit``; ``cli`` has
all.

From the top, each floor imports only those below it:

``runs`` (one long run, from its spec to its end);
``sweeps`` (many cells), ``reports``, ``checkpoints``, ``packing``, ``doctor``, ``clusters``: one command
each;
``spec_schema`` (what a user's file may say);
``recovery`` (what follows a failure), ``alerts``, ``launch`` (through Ray Train, ``torchrun`` or in this
process);
``execution`` (what an executor promises, and what is made of what ranks tell; knows no Ray),
``run_progress`` (what a driver knows and tells of its run);
``training`` (what happens inside a worker);
``commandline`` (what all commands share).
"""
