"""Imports all modules that a worker needs up to its first step; workers are then forked from that process."""

from importlib import import_module

from jobs.training.task.job import Strategy

# torch imports ``torch._dynamo`` itself, but only when the first optimizer is made.
_LOADED_BY_AN_ATTEMPT = ("jobs.training.health.failures", "jobs.training.loop.attempt", "torch._dynamo")


def load(strategy: Strategy) -> None:
    """Imports the modules that a worker on CPUs loads up to its first step."""
    from jobs.training.strategies.build import load as load_strategy

    for name in _LOADED_BY_AN_ATTEMPT:
        import_module(name)
    load_strategy(strategy)
