"""What is asked of a worker and what it tells: plain data, no torch.

Reading order: ``job`` (a recipe) with its learning rate's ``schedules`` and model ``presets``, ``context``
(where a rank stands), ``measurement`` (what a cell tells). Of a long run: ``task``, its ``position``,
``events``, ``stop_request``; ``spikes`` and ``skipping`` what caused them; ``token_index``, ``windows`` of
tokens, ``sample_order``.
"""
