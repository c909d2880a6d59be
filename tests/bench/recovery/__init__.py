"""Recovery beside stock Ray Train V2: ``python -m tests.bench.recovery [TRIAL ...]``, as root. Minutes.

``stock`` is a training as Ray's guide has it; ``systems`` start it and ours on hosts of this machine;
``trials`` let something happen to them; ``saves`` says what ours pays for its checkpoints.
"""
