"""Reads the shape of a model from the ``config.json`` in its folder."""

from pathlib import Path

from checkpointing.errors import Unfit
from jobs.training.models.hugging_face import shape_of
from jobs.training.models.json_file import read_object
from jobs.training.task.presets import ModelShape

CONFIG = "config.json"
_MOST_BYTES = 2**20


def read_shape(folder: Path) -> ModelShape | None:
    """The shape, or None if the folder or the file in it is not there.

    Raises ``Unfit`` with one line that names the file if that says anything the decoder does not compute.
    """
    path = folder / CONFIG
    content = read_object(path, most_bytes=_MOST_BYTES)
    if content is None:
        return None
    try:
        return shape_of(content)
    except Unfit as error:
        raise Unfit(f"{path}: {error}") from None
