"""Finds pretrained weights in safetensors files and checks them against a model. Needs no torch.

Only headers are read, and the JSON files beside the weights. Every problem raises ``Unfit``, with one line
that names the file or folder.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from checkpointing.errors import Unfit
from checkpointing.stores.bounded import excess_of
from jobs.training.models.config_file import CONFIG, read_shape
from jobs.training.models.hugging_face import differences, tensor_shapes
from jobs.training.models.json_file import read_object, value_text
from jobs.training.task.presets import ModelConfig

ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000
# Keys that change nothing of what given weights compute.
_IDLE = ("max_position_embeddings", "initializer_range")
# Tables in older files, which the decoder computes itself.
_COMPUTED = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One whole tensor in a file. ``dtype`` is a key of ``ELEMENT_BYTES``; data begin at byte ``offset``."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]


def find_weights(place: Path, config: ModelConfig) -> dict[str, Stored]:
    """Finds all of the model's parameters, by name. ``place`` is a model's folder, or its only file."""
    tensors = {name: stored for file in _files(place) for name, stored in _tensors(file).items()}
    _check_config(place, config)
    _check_tensors(place, config, tensors)
    return {name: tensors[name] for name in tensor_shapes(config)}


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise Unfit(f"weights: {place} is not there; expected a model's folder, on every node")
    if (place / _SINGLE).is_file():
        return [place / _SINGLE]
    if not (place / _INDEX).is_file():
        raise Unfit(f"weights: {place} has neither {_SINGLE} nor {_INDEX}; expected a model's folder")
    files = _index(place / _INDEX)
    if missing := [file.name for file in files if not file.is_file()]:
        raise Unfit(f"weights: {place} lacks {missing[0]}, which its index names{_more(missing)}")
    return files


def _index(path: Path) -> list[Path]:
    try:
        content = read_object(path, most_bytes=_MOST_HEADER_BYTES) or {}
    except Unfit as error:
        raise Unfit(f"weights: {error}") from None
    names = content.get("weight_map")
    if not isinstance(names, Mapping) or not all(_is_plain(name) for name in names.values()):
        raise Unfit(f"weights: {path} is no index of safetensors files")
    return [path.parent / name for name in sorted(set(names.values()))]


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name


def _tensors(file: Path) -> dict[str, Stored]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            text = opened.read(length) if length <= _MOST_HEADER_BYTES else b""
        header = None if excess_of(text) else json.loads(text or b"null")
        return _checked(file, header, 8 + length)
    except OSError as error:
        raise Unfit(f"weights: {file} can't be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unfit(f"weights: {file} is not a safetensors file") from None


def _checked(file: Path, header: Any, start: int) -> dict[str, Stored]:
    num_bytes, tensors = file.stat().st_size, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not {*map(type, (begin, end, *shape))} <= {int} or begin < 0:
            raise ValueError(name)
        if dtype in ELEMENT_BYTES and end - begin != prod(shape) * ELEMENT_BYTES[dtype]:
            raise ValueError(name)
        if start + end > num_bytes:
            raise Unfit(f"weights: {file} is cut short: {num_bytes:,} bytes, {start + end:,} expected")
        tensors[name] = Stored(file=file, offset=start + begin, dtype=dtype, shape=shape)
    return tensors


def _check_config(place: Path, config: ModelConfig) -> None:
    """Checks ``config.json`` against the model. Without that file only the weights' shapes are checked."""
    folder = place if place.is_dir() else place.parent
    try:
        shape = read_shape(folder)
    except Unfit as error:
        raise Unfit(f"weights: {error}") from None
    if shape is None:
        return
    for key, (theirs, ours) in differences(shape, config).items():
        if key not in _IDLE:
            raise Unfit(
                f"weights: {folder / CONFIG}: {key} is {value_text(theirs)}, but {config.name} has "
                f"{value_text(ours)}"
            )


def _check_tensors(place: Path, config: ModelConfig, found: Mapping[str, Stored]) -> None:
    shapes = tensor_shapes(config)
    if missing := [name for name in shapes if name not in found]:
        raise Unfit(f"weights: {place} lacks {missing[0]} of {config.name}{_more(missing)}")
    if wrong := [name for name, shape in shapes.items() if found[name].shape != shape]:
        name, theirs = wrong[0], found[wrong[0]]
        raise Unfit(
            f"weights: {theirs.file}: {name} is {_shape(theirs.shape)}, but {config.name} has "
            f"{_shape(shapes[name])}{_more(wrong)}"
        )
    if strange := [name for name in found if name not in shapes and not _is_known(name, config)]:
        raise Unfit(f"weights: {place} has {strange[0]}, which {config.name} has not{_more(strange)}")
    if unread := [name for name in shapes if found[name].dtype not in ELEMENT_BYTES]:
        dtype, known = found[unread[0]].dtype, ", ".join(ELEMENT_BYTES)
        raise Unfit(f"weights: {place}: {unread[0]} is of type {dtype}; expected {known}{_more(unread)}")


def _is_known(name: str, config: ModelConfig) -> bool:
    return name.endswith(_COMPUTED) or (config.tied_embeddings and name == "lm_head.weight")


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
