"""The data of a run, found and checked before anything is started: ``find`` (what is trained on, and what is
evaluated on), ``stored`` (what lies in a place), ``agreement`` (does it fit the model, and the other places),
``masks`` (what keeps documents apart in a row).
"""
