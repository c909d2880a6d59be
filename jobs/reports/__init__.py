"""``longhaul report``, ``pull``, ``compare`` and ``import`` work on stored results.

Reading order: ``arguments``, ``report`` (makes reports and copies them) with ``prices_file`` and
``yardstick``, ``compare`` with ``targets``, ``gate`` (may B replace A?) and ``compare_text``, ``choose``
(what fits a budget and a deadline?), ``import_results``.
"""
