"""The files of a generation, and how their bytes are loaded.

Reading order: ``manifest`` (names, shapes and positions; the form of one object), ``splits`` (rules by which
ranks share a tensor), ``records`` (what follows from no rule), ``pieces`` (the form of many objects),
``digests`` (how damage is noticed), ``reshard`` (which rank needs which bytes), ``loading``.
"""
