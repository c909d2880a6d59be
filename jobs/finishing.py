"""What is done once with a run that has finished, by whoever finds it so first."""

from pathlib import Path

from checkpointing.repository import Repository
from checkpointing.retention import latest, of_this_life
from jobs.checkpoints.export import export
from jobs.errors import SpecError


def export_once(repository: Repository, place: Path) -> str | None:
    """The finished model as plain files in the folder ``place``, and a line about it.

    None where nothing was to be done: what is there already stays, whatever it is.
    """
    view = repository.refresh()
    newest = latest(of_this_life(view))
    if view.finished_step is None or newest is None or place.exists():
        return None
    try:
        done = export(repository, newest, place)
    except OSError as error:
        problem = f"on_finish.export: {place} can't be written ({error.strerror}); the run itself is finished"
        raise SpecError([problem]) from None
    return f"exported to {place}: {done.num_tensors} tensors, {done.num_bytes / 1e6:,.1f} MB of {done.dtype}"
