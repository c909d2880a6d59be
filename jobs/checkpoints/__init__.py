"""What a user can ask and do about a run's checkpoints: ``longhaul checkpoints ...``.

Reading order: ``arguments``, ``commands`` (the stories), ``inventory`` (what is kept and why), ``portrait``
(one generation in detail), ``verdicts`` (is it still what was saved?), ``text`` (for people), ``export``
(plain files of the model alone).
"""
