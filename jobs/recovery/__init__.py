"""What follows a failed attempt.

Reading order: ``policy`` (pure: what to do next), ``loop`` (attempts one after another), ``rollback`` (to
before a bad loss), ``journal`` (attempts of earlier drivers), ``world_size`` and ``resizing`` (smaller or
larger).
"""
