"""Stores keep objects by name, each whole or not at all: one contract, several kinds of place.

Reading order:

- ``contract`` is what every store promises; ``versions`` is what some tell beside it.
- ``local`` is a directory, whose ``folders`` are reached without following links; ``memory`` is for tests.
- ``objects`` is object storage; ``buckets`` opens a bucket from a URL; ``settings`` looks at the cloud's
  settings first; ``refusals`` says what a server's answer means.
- ``transfers`` bounds how long a transfer may stand still; ``retrying`` waits for a store that is away.
- ``bounded`` reads objects that others wrote, up to a bound.
- ``opening`` opens the store that a user named; ``probing`` tests whether it can be relied on;
  ``verbs`` tries each operation by itself.
"""
