"""SAFE: checkpoints whose bytes survive. This package knows nothing of jobs, models or vendors.

Each folder imports only the folders named after it:

- ``saving`` writes live training state as a generation (one checkpoint), in the background.
- ``generations`` decides what a run keeps and which generation it resumes.
- ``format`` defines the files of a generation.
- ``log`` is the commit log.
- ``stores`` keeps objects by name, in a directory or a bucket.

``errors`` holds the exceptions of all of them. ``ray_hooks`` reports our checkpoints to Ray Train.
"""
