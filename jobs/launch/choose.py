"""Chooses the executor that carries out a sweep or a run."""

from collections.abc import Sequence

from jobs.execution.executor import Executor
from jobs.launch.torchrun import LauncherPlace, is_under_torchrun


def choose_executor(
    name: str | None, *, verbose: bool, share_nodes: bool, spread: bool = False, excluded: Sequence[str] = ()
) -> Executor:
    """The executor called ``name``. The default is Ray, or under ``torchrun`` the processes that it started.

    Only the chosen executor is imported.
    """
    if (name or ("inline" if is_under_torchrun() else "ray")) == "inline":
        from jobs.launch.inline_executor import InlineExecutor

        return InlineExecutor(LauncherPlace.of_this_process())
    from jobs.launch.ray_executor import RayExecutor

    return RayExecutor(verbose=verbose, share_nodes=share_nodes, spread=spread, excluded=excluded)
