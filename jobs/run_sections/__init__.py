"""The sections of a run's file, each as strict as the whole, and what each becomes for its owner.

Reading order: ``data`` (what it reads, what is held out), ``kept`` (what is saved and recorded of it),
``endurance`` (how it goes on, and ends).
"""
