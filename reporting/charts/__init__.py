"""Charts are pictures of findings: the same findings give the same bytes, on every machine and in every
theme.

Reading order: ``drawing`` (which charts there are), ``looks`` (the fixed look of a strategy and a group),
``wording`` (names and numbers as text), ``choice`` (what is drawn if there is too much), ``sheet`` (an empty
figure, and a finished one as bytes), ``svg`` (prepares a chart for the page), ``marks`` (what is drawn in a
panel). ``importing`` keeps other people's settings of matplotlib out.

The pictures: ``verdicts`` (the first one: two groups side by side), ``panels`` (the four-panel comparison),
``curves`` (over the number of devices), ``limit``, ``front`` and ``heat_map`` (memory against speed),
``costs`` (what tokens cost). Those of long runs are in ``trainings``.
"""
