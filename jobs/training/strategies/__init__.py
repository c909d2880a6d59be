"""The five strategies (ddp, fsdp, zero1, zero2, zero3) behind one protocol.

Reading order: ``contract`` (the engine), ``build`` (makes an engine from a recipe), ``native`` (an engine
around torch's own backward and optimizer), ``ddp`` and ``fsdp`` on top of ``native``, ``zero`` (DeepSpeed's
three stages) with ``zero_state``. ``optimizer``, ``state`` and ``memory`` are shared by all strategies;
``host_adamw`` is the optimizer whose moments live in host memory.
"""
