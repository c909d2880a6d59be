"""``longhaul runs``: ``arguments`` (its flags), ``command`` (its story), ``names`` (which runs and sweeps a
store holds), ``reading`` (how each is doing), ``text`` (the table).
"""
