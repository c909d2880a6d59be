"""``longhaul init``: ``arguments`` (its flags), ``command`` (its story), ``choice`` (what runs on a group and
fits), ``spec_text`` (the file that is written).
"""
