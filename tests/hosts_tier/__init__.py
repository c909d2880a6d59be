"""Faults of whole hosts: needs root, and what ``make test-hosts`` runs."""
