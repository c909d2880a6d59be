"""SAFE: bytes that survive. Knows nothing of jobs, models or vendors.

Each folder imports only the ones named after it: ``saving`` (live state becomes a generation, in the
background), ``generations`` (what a run keeps, and what it goes on from), ``format`` (what a generation
consists of), ``log`` (the commit log), ``stores`` (objects by name, in a directory or a bucket).
``errors`` is what all of them raise. ``ray_hooks`` tells Ray Train of our checkpoints.
"""
