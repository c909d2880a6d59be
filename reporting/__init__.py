"""SEEN: numbers that can be trusted.

Each folder imports only those named after it: ``page`` (HTML); ``charts`` and ``markdown``; ``analysis``
(what the table says, and how sure we are); ``long_runs`` (one training, from what it recorded);
``recording`` (what a training leaves while it runs) and ``importers`` (older results of other tools);
``results`` (the table).
"""
