"""Runs one attempt of a long run.

Reading order: ``attempt`` (the whole course); ``rank_checks`` (before anything is loaded); ``step_boundary``
(the work after each step) with ``control`` (what all ranks agree on), ``evaluation``, ``recording`` with
``incidents``, and ``progress_reports``; ``replay`` (a step that was done before); ``hand_over`` and
``hand_over_check`` (what another group computed); ``last_state`` (what is left when a
peer is lost); ``ending``.
"""
