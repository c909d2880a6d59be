"""``report.md``: the ``report``, and the ``parts`` that GitHub's Markdown is made of."""
