"""What is worth waking somebody for: ``rules`` (when), ``notifier`` (whom), ``command`` (the user's own)."""
