"""What a worker is asked to do and what it reports: plain data, no torch.

Reading order:

* Every worker: ``job`` (a recipe) with its ``settings``, its learning rate's ``schedules`` and model
  ``presets``, ``context`` (one rank's place and status).
* A cell: ``measurement`` (its result), ``search`` (for the largest micro-batch that fits).
* A long run: ``task``, ``position`` (its step and sample count), ``events`` (its reports), ``stop_request``.
* Bad losses: ``spikes`` detects them, ``skipping`` leaves out the samples that caused them.
* Samples: ``token_index``, ``windows`` (which tokens a sample is), ``sample_order``.
"""
