"""``longhaul data``: ``arguments`` (its flags), ``command`` (its story), ``facts`` (what the data hold, and
which samples a step reads), ``excerpt`` (how the first document begins), ``verifying`` (whether their bytes
are those of the index), ``text`` (how people read it). Documents are read in ``jobs.runs.data_read``.
"""
