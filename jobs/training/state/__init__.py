"""Saves and restores a training's state.

Reading order: ``saving``, ``restoring``, ``pretrained`` (starts a run from given weights), ``random_state``,
``rank_mailbox`` (messages between ranks about saves).
"""
