"""The training code that runs inside a worker. It imports neither Ray nor the driver.

Reading order:

* ``task``: what a worker is asked to do and what it reports, as plain data without torch.
* ``benchmark`` measures one cell; ``loop`` runs one attempt of a long run. Both call ``step``.
* ``state`` (saving and resuming), ``strategies``, ``models``, ``precision``, ``data``, ``device``.
* ``health``: finds out what went wrong. ``integrity``: whether ranks compute alike.
* ``ranks``: messages between ranks.
* ``preload`` imports all of this before a worker needs it.
"""
