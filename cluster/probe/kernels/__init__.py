"""Known kernels on known numbers: ``known`` computes them, ``recorded`` has what healthy devices computed,
``recorded_file`` reads and extends a file of it.

``recorded.json`` lies in the package. Nobody has recorded any device in it yet.
"""
