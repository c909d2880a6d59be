"""Alarms about a run: ``rules`` (when), ``notifier`` (who hears of one), ``command`` (the alert command)."""
