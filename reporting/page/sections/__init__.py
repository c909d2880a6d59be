"""Sections of the page, each a function of the findings to markup; empty where there is nothing to show.

In their order: ``answers``, ``costs``, ``goals``, ``machines``, ``measured``, ``published``, ``profiles``,
``troubles``, ``nodes``, ``trainings``, ``goodput``, ``explained``.
"""
