"""An attempt of a long run.

Reading order: ``attempt`` (the page): ``rank_checks`` first, then step by step with what is done at each
``step_boundary``: ``control`` (what all ranks agree on), ``evaluation``, ``recording``,
``progress_reports``; then the ``ending``.
"""
