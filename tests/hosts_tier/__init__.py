"""Faults of whole hosts: needs root. `make test-hosts` runs one case of each kind, `make soak` all of them.

``clusters`` starts Ray and trainings on hosts, ``faults`` is what happens to them, ``stories`` what is looked
at before and after; the tests are by what is struck.
"""
