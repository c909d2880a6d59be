"""Pictures of findings: the same findings give the same bytes, on every machine and in every theme.

Reading order: ``drawing`` (which charts there are), ``looks`` (how a strategy and a group always look),
``wording`` (names and numbers as text), ``choice`` (what is drawn where there is too much), ``sheet`` (an
empty figure, and a full one as bytes), ``svg`` (made fit for a page), ``marks`` (what is put into a panel).

The pictures: ``panels`` (the four-panel comparison), ``curves`` (over the number of devices), ``limit``,
``front`` and ``heat_map`` (what memory allows and buys), and of long runs ``traces`` (made short),
``losses``, ``goodput`` and ``devices`` (their power and clocks).
"""
