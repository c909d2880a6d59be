"""Sides are what is compared: what each ran on, and what else differed between two.

Reading order: ``environments`` (the groups' machines side by side), ``causes`` (differences between two
sides, the likeliest reason first), ``at_its_best`` (groups each at its best setting).
"""
