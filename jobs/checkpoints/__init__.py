"""What a user can ask and do about a run's checkpoints: ``longhaul checkpoints ...``.

Reading order: ``arguments``, ``command`` (the stories), ``listing`` (what is kept and why), ``details``
(one generation), ``verification`` (is it still what was saved?), ``text`` (for people), ``export``
(plain files of the model alone).
"""
