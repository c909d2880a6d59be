"""``longhaul checkpoints`` lists, inspects, verifies, pins, cleans and exports a run's checkpoints.

Reading order:

- ``arguments``, ``command`` (one function per verb);
- ``listing`` (what is kept and why), ``details`` (one generation);
- ``verification`` (reads a generation's bytes back), ``text`` (for people);
- ``adopting`` (takes generations back into the log);
- ``export`` (plain files of the model alone).
"""
