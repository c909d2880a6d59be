"""Alarms about a run: ``rules`` (when) with ``slow_links``, ``notifier`` (who hears of one), ``command`` (the
alert command).
"""
