"""Exports a generation's model as plain Hugging Face files: safetensors and a ``config.json``.

Every byte is checked against its digest. Memory holds one tensor and the chunks being read.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from checkpointing.errors import NothingToResume, Unfit
from checkpointing.format.loading import fill
from checkpointing.format.manifest import DTYPE_BYTES, Manifest, TensorInfo
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import Generation
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.stored_spec import stored_model
from jobs.training.models.hugging_face import config_json
from jobs.training.task.presets import ModelConfig

ExportDtype = Literal["fp32", "bf16"]

MAX_FILE_BYTES = 5 * 10**9
_PARAMETERS = "param/"
_TORCH_NAMES: dict[ExportDtype, str] = {"fp32": "float32", "bf16": "bfloat16"}
_SAFETENSORS_NAMES: dict[ExportDtype, str] = {"fp32": "F32", "bf16": "BF16"}
_ALIGNMENT = 8

Read = Callable[[TensorInfo], memoryview]
"""Returns the bytes of one tensor, as they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    dtype: ExportDtype


def export(
    repository: Repository,
    generation: Generation,
    folder: Path,
    *,
    dtype: ExportDtype = "fp32",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Exported:
    """Writes the model to ``folder``. The folder must be new or empty, and appears complete or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError([f"--to {folder}: holds something already; name a folder that is new or empty"])
    if generation.quarantined is not None:
        raise NothingToResume(f"{generation.name} is quarantined: {generation.quarantined}")
    manifest = repository.manifest(generation)
    config, tensors = _config(manifest), _parameters(manifest)
    _check(config, tensors, generation.name)
    read = partial(_read, repository, manifest, dtype)
    files = _split(tensors, DTYPE_BYTES[_SAFETENSORS_NAMES[dtype]], max_file_bytes)
    with _new_folder(folder) as place:
        names = [_write_file(place, number, files, read, dtype) for number in range(len(files))]
        num_bytes = sum(tensor.num_elements for tensor in tensors) * DTYPE_BYTES[_SAFETENSORS_NAMES[dtype]]
        if len(files) > 1:
            _write_json(place / "model.safetensors.index.json", _index(names, files, num_bytes))
        _write_json(place / "config.json", config_json(config, _TORCH_NAMES[dtype]))
    return Exported(files=tuple(names), num_tensors=len(tensors), num_bytes=num_bytes, dtype=dtype)


def _config(manifest: Manifest) -> ModelConfig:
    """The model of a generation: a preset, or the shape that is stored with the generation's spec."""
    state = manifest.cut.state
    name, spec = state.get("model"), state.get("spec")
    config = (stored_model(spec) if isinstance(spec, dict) else None) or stored_model({"model": name})
    if config is None:
        raise Unfit(f"{manifest.cut.generation} is of the model {name!r}, which is no preset of this version")
    return config


def _parameters(manifest: Manifest) -> list[TensorInfo]:
    return [tensor for name, tensor in manifest.tensors.items() if name.startswith(_PARAMETERS)]


def _check(config: ModelConfig, tensors: Sequence[TensorInfo], generation: str) -> None:
    num_elements = sum(tensor.num_elements for tensor in tensors)
    if num_elements != config.num_parameters:
        raise Unfit(
            f"{generation} has {num_elements:,} parameters, {config.name} has {config.num_parameters:,}: "
            "the model was changed since"
        )
    for tensor in tensors:
        if tensor.dtype != "F32":
            raise Unfit(f"{generation}: {tensor.name} is of type {tensor.dtype}; expected F32")


def _split(tensors: Sequence[TensorInfo], element_bytes: int, max_file_bytes: int) -> list[list[TensorInfo]]:
    """Splits the tensors into files, in their order, each as full as possible.

    A tensor larger than ``max_file_bytes`` gets its own file.
    """
    files: list[list[TensorInfo]] = [[]]
    room = max_file_bytes
    for tensor in tensors:
        size = tensor.num_elements * element_bytes
        if size > room and files[-1]:
            files.append([])
            room = max_file_bytes
        files[-1].append(tensor)
        room -= size
    return files


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder beside ``folder``, which is renamed to ``folder`` at the end.

    On an error the temporary folder is deleted. If others fill ``folder`` meanwhile, their files stay.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.absolute().parent / f".{folder.absolute().name}-{secrets.token_hex(4)}"
    place.mkdir()
    try:
        yield place
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write_file(
    place: Path, number: int, files: Sequence[Sequence[TensorInfo]], read: Read, dtype: ExportDtype
) -> str:
    name = "model.safetensors"
    if len(files) > 1:
        name = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
    with (place / name).open("wb") as file:
        file.write(_header(files[number], dtype))
        for tensor in files[number]:
            file.write(read(tensor))
        _flush(file)
    return name


def _header(tensors: Sequence[TensorInfo], dtype: ExportDtype) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    kind, end = _SAFETENSORS_NAMES[dtype], 0
    for tensor in tensors:
        start, end = end, end + tensor.num_elements * DTYPE_BYTES[kind]
        entries[_public(tensor)] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-len(text) // _ALIGNMENT) * _ALIGNMENT
    return length.to_bytes(8, "little") + text.ljust(length)


def _read(repository: Repository, manifest: Manifest, dtype: ExportDtype, tensor: TensorInfo) -> memoryview:
    want = Want(
        tensor=tensor.name,
        start=0,
        length=tensor.num_elements,
        num_elements=tensor.num_elements,
        dtype=tensor.dtype,
    )
    values = memoryview(bytearray(tensor.num_elements * DTYPE_BYTES[tensor.dtype]))
    fill(manifest, plan(manifest, [want]), [values], [repository.place(manifest.cut.generation)])
    if dtype == "fp32":
        return values
    from jobs.training.precision import as_bf16  # loading torch takes seconds

    return as_bf16(values)


def _index(names: Sequence[str], files: Sequence[Sequence[TensorInfo]], num_bytes: int) -> dict[str, object]:
    places = {_public(tensor): name for name, file in zip(names, files, strict=True) for tensor in file}
    return {"metadata": {"total_size": num_bytes}, "weight_map": places}


def _public(tensor: TensorInfo) -> str:
    return tensor.name.removeprefix(_PARAMETERS)


def _write_json(path: Path, content: dict[str, object]) -> None:
    with path.open("wb") as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
        _flush(file)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def export_once(repository: Repository, place: Path) -> str | None:
    """Exports the finished model to the folder ``place`` and returns a line about it.

    Returns None and writes nothing if the run is not finished, has no generation, or if ``place`` exists,
    whatever it contains.
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
