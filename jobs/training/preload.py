"""Loads what a worker needs until its first step: processes are forked from one that has loaded it."""

from importlib import import_module

from jobs.training.task.job import Strategy

# The last by the first optimizer that is made.
_LOADED_BY_AN_ATTEMPT = ("jobs.training.health.failures", "jobs.training.loop.attempt", "torch._dynamo")


def load(strategy: Strategy) -> None:
    """What a worker on CPUs loads until its first step."""
    from jobs.training.strategies.build import load as load_strategy

    for name in _LOADED_BY_AN_ATTEMPT:
        import_module(name)
    load_strategy(strategy)
