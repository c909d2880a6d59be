"""A run's generations: which exist, which are kept and which one to resume.

Reading order:

- ``repository`` holds a run's generations in a store.
- ``retention`` decides which are kept.
- ``choice`` decides which one to resume.
- ``unnamed`` finds whole generations that the log does not name.
- ``manifests`` reads manifests, and tells who wrote them.
- ``adoption`` takes them back into the log.
- ``deletion`` deletes, and goes on behind what a store refuses to delete.
- ``audit`` finds what is wrong.
- ``garbage`` removes objects of no further use.
"""
