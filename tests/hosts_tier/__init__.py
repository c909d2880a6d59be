"""Faults of whole hosts: needs root. `make test-hosts` proves the hosts, `make soak` trains on them.

``clusters`` starts Ray and trainings on hosts, ``faults`` is what happens to them, ``stories`` what is looked
at before and after; the tests are by what is struck. ``expiring`` is object storage whose keys expire,
``memory`` takes a process its memory. ``slurm`` starts a real Slurm for ``test_slurm``.
"""
