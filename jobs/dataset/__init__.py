"""``longhaul data``: ``arguments`` (its flags), ``command`` (its story), ``facts`` (what the data hold, and
which samples a step reads), ``documents`` (how many, how long, copies), ``excerpt`` (how the first one
begins), ``verifying`` (whether their bytes are those of the index), ``text`` (how people read it).
"""
