"""Saving and going on: ``saving``, ``restoring``, ``pretrained`` weights to begin with, ``random_state``, and
the ``rank_mailbox`` between ranks.
"""
