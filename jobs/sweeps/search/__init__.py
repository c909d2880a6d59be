"""What a sweep looks for instead of measuring everything.

Reading order:

- ``answers`` (the largest micro-batch that fits, once it is found);
- ``questions``, ``halving``: what ``--best`` compares, and which measurements are wanted next;
- ``decision`` (what is best, as it is stored), ``best_table`` (the same for people).
"""
