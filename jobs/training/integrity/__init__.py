"""Finds a device that computes wrongly without telling so: all ranks compute one micro-batch, and compare.

Reading order: ``comparison`` (pure: who is at fault), ``checking`` (what a rank computes, and when),
``exchanging`` (known numbers, sent by the collectives of a training),
``clean_checks`` (the newest check without a difference, kept in the run's store).
"""
