"""Objects by name, whole or not at all: one contract, several places.

Reading order: ``contract``; ``local``, in ``folders`` that are reached without following links, and
``memory``; ``objects`` (object storage) with ``buckets`` (from a url to a bucket) and ``refusals`` (what a
server's answer means); ``transfers`` (bounded waits), ``retrying`` (a store that is away); ``opening``
(from what a user wrote to a store), ``probing`` (whether it can be relied on).
"""
