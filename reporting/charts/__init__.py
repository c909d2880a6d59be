"""Pictures of findings: the same findings give the same bytes, on every machine and in every theme.

Reading order: ``drawing`` (which charts there are), ``looks`` (how a strategy and a group always look),
``wording`` (names and numbers as text), ``choice`` (what is drawn where there is too much), ``sheet`` (an
empty figure, and a full one as bytes), ``svg`` (made fit for a page), then the pictures: ``curves`` (over
the number of devices), ``panels`` (the four-panel comparison), ``memory`` (limit, front, heat map) and
``traces`` (what changes while a run runs).
"""
