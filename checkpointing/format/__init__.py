"""The files of a generation, and how their bytes are loaded.

Reading order: ``manifest`` (names, shapes and positions), ``digests`` (how damage is noticed), ``reshard``
(which rank needs which bytes), ``loading``.
"""
