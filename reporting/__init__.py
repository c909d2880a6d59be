"""SEEN: reporting turns what runs recorded into numbers that can be trusted.

Each folder imports only folders named after it. The order is: ``page`` (HTML); ``charts`` and ``markdown``;
``analysis`` (what the table says, and how certain that is); ``long_runs`` (one training, from its records);
``recording`` (what a training writes while it runs) and ``importers`` (older results of other tools);
``results`` (the table).
"""
