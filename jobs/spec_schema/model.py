"""The model of a spec: a preset, or a shape that is read from a folder's ``config.json``."""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_serializer, model_validator

from checkpointing.errors import Unfit
from jobs.commandline.usage_error import SpecError, nearest
from jobs.spec_schema.file import Name, Strict
from jobs.training.models.config_file import CONFIG, read_shape
from jobs.training.models.hugging_face import check_expressible
from jobs.training.task.presets import (
    MOST_LABEL_CHARS,
    PRESETS,
    ModelConfig,
    ModelShape,
    config_named,
    preset_of_shape,
)


def _short(name: str) -> str:
    if len(name) > MOST_LABEL_CHARS:
        raise ValueError(f"{name!r} is too long for a model's name; expected at most {MOST_LABEL_CHARS}")
    return name


class Model(Strict):
    """``model: PRESET``, or ``model: {path: FOLDER}``, also with a ``name``.

    The folder is read on the machine that loads the spec. What it says is the ``shape``, which is stored with
    the spec: then nobody reads the folder again. ``shape`` is None if the folder is not there.
    """

    path: Annotated[str, Field(min_length=1)] | None = None
    name: Annotated[Name, AfterValidator(_short)]
    shape: ModelShape | None = None

    @property
    def config(self) -> ModelConfig:
        """The shape with its full name. ``SpecError`` if the folder was not there."""
        if self.shape is None:
            raise SpecError([f"model: {self.missing}"])
        return config_named(self.shape, self.name)

    @property
    def missing(self) -> str:
        return (
            f"{Path(str(self.path)) / CONFIG} is not there; expected a folder with Hugging Face's "
            f"{CONFIG}, on the machine where the spec is read"
        )

    @model_validator(mode="before")
    @classmethod
    def _with_its_shape(cls, value: object) -> object:
        if isinstance(value, str):
            return _of_preset(value)
        if not isinstance(value, dict) or not (value.keys() & {"path", "shape"}):
            raise ValueError(f"found {value!r}, expected the name of a preset, or {{path: FOLDER}}")
        path, shape = value.get("path"), value.get("shape")
        if not isinstance(path, str):
            return value if path is None else {"name": "model", **value}
        folder = _folder(path)
        usual = _label(folder)
        if shape is None and (shape := _read(folder)):
            usual = preset_of_shape(shape) or usual
        name = value.get("name")
        return {**value, "name": usual if name is None else name, "shape": shape}

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        # Presets are held to this by a test.
        if self.shape is not None and self.config is not PRESETS.get(self.name):
            try:
                check_expressible(self.shape)
            except Unfit as error:
                raise ValueError(f"shape: {error}") from None
        return self

    @model_serializer
    def _as_stored(self) -> str | dict[str, Any]:
        if self.path is None and self.name in PRESETS and self.config is PRESETS[self.name]:
            return self.name
        return {"path": self.path, "name": self.name, "shape": self.shape and asdict(self.shape)}


def _of_preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise ValueError(f"{name!r} is not a model ({', '.join(PRESETS)}){nearest(name, list(PRESETS))}")
    return {"name": name, "shape": PRESETS[name].shape}


def _folder(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # The home of a user whom nobody knows.
        return Path(path)


def _read(folder: Path) -> ModelShape | None:
    try:
        return read_shape(folder)
    except Unfit as error:
        raise ValueError(str(error)) from None


def _label(folder: Path) -> str:
    """The folder's name, without what no name of a model has in it."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.normpath(folder.absolute())).name)
    return words.lstrip("._-")[:MOST_LABEL_CHARS] or "model"
