"""Costs say what tokens and trainings cost, from measured speed and from prices that somebody gave.

Reading order: ``prices`` (what is taken as prices), ``money`` (costs and break-even prices), ``telling``
(sentences of the answer), ``choosing`` (what fits a budget and a deadline), ``stretches`` (of long runs that
moved), ``extrapolating`` (more devices than were measured). Prices are never part of a result: prices
change, results do not.
"""
