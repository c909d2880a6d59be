"""Alarms about a run: ``rules`` (when) with ``slow_ranks``, ``slow_links`` and ``slow_hosts``, ``link_looks``
(has the links between hosts tried), ``notifier`` (who hears of one), ``command`` (the alert command).
"""
