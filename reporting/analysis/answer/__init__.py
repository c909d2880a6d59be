"""The answer is what a report says first, sentence by sentence.

Reading order: ``pairs`` (which group is faster, at the same settings and each at its best), ``grounds`` (what
that rests on, and what could overturn it), ``fastest`` (the fastest setting of each model) with ``sizes``
(what cells must have in common to be ranked).
"""
