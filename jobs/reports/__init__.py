"""``longhaul report``, ``pull``, ``compare`` and ``import``.

Reading order: ``arguments``, ``report`` (and copies of reports), ``compare`` with ``compare_text``,
``import_results``.
"""
