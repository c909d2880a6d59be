"""The five strategies behind one protocol.

Reading order: ``contract`` (the engine), ``build`` (from a recipe to an engine), ``native`` (torch's own
loop), ``ddp`` and ``fsdp`` on top of it, ``zero`` (DeepSpeed's three stages) with ``zero_state``;
``optimizer``, ``state`` and ``memory`` are what all share.
"""
