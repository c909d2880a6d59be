"""``longhaul report``, ``pull``, ``compare`` and ``import`` work on stored results.

Reading order: ``arguments``, ``report`` (makes reports and copies them) with ``prices_file``, ``compare``
with ``gate`` (may B replace A?) and ``compare_text``, ``import_results``.
"""
