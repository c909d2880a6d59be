"""Alarms about a run: ``rules`` (when) with ``slow_links`` and ``slow_hosts``,
``notifier`` (who hears of one), ``command`` (the
alert command).
"""
