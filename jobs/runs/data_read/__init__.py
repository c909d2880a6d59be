"""What the data of a run hold: ``documents`` (how many, how long, copies, what samples cut), ``places``
(where they are read, and when), ``record`` (what is kept with the run, for reports).
"""
