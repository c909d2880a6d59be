"""Weights that others have trained: found whole, or refused in one line before anything is started."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import Unfit
from checkpointing.stores import bounded
from jobs.training.models.hugging_face import config_json, tensor_shapes
from jobs.training.models.weights import find_weights
from jobs.training.task.presets import PRESETS, ModelConfig

MODEL = replace(PRESETS["llama-tiny"], hidden_size=8, intermediate_size=4, num_layers=2, vocab_size=6)
TIED = replace(MODEL, tied_embeddings=True)
HEAD, NORM = "lm_head.weight", "model.norm.weight"
Shapes = Mapping[str, tuple[int, ...]]


def write_tensors(path: Path, shapes: Shapes, dtype: str = "F32") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, size = end, {"F32": 4, "BF16": 2, "I8": 1}[dtype]
        for length in shape:
            size *= length
        end = start + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def write_model(folder: Path, shapes: Shapes | None = None, **config: Any) -> Path:
    write_tensors(folder / "model.safetensors", tensor_shapes(MODEL) if shapes is None else shapes)
    (folder / "config.json").write_text(json.dumps(config_json(MODEL, "float32") | config))
    return folder


def split(folder: Path, config: ModelConfig = MODEL) -> Path:
    shapes = list(tensor_shapes(config).items())
    files = {"one.safetensors": dict(shapes[::2]), "two.safetensors": dict(shapes[1::2])}
    for name, of_file in files.items():
        write_tensors(folder / name, of_file, "BF16")
    places = {tensor: name for name, of_file in files.items() for tensor in of_file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)
def test_a_presets_tensors_hold_as_many_values_as_it_has_parameters(config: ModelConfig) -> None:
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in tensor_shapes(config).values()]
    assert sum(sizes) == config.num_parameters


def test_a_header_of_more_values_than_are_parsed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path)
    monkeypatch.setattr(bounded, "_ANY_VALUES", 10)
    monkeypatch.setattr(bounded, "_LEAST_BYTES_PER_VALUE", 10**9)
    with pytest.raises(Unfit, match="is not a safetensors file"):
        find_weights(folder, MODEL)


def test_one_file_is_found_with_or_without_its_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    found = find_weights(folder, MODEL)
    assert list(found) == list(tensor_shapes(MODEL))
    assert found == find_weights(folder / "model.safetensors", MODEL)


def test_several_files_are_found_through_their_index(tmp_path: Path) -> None:
    found = find_weights(split(tmp_path), MODEL)
    assert {one.file.name for one in found.values()} == {"one.safetensors", "two.safetensors"}
    assert {one.dtype for one in found.values()} == {"BF16"}


def test_a_tied_models_head_and_tables_that_are_computed_are_no_strangers(tmp_path: Path) -> None:
    more = {HEAD: (6, 8), "model.layers.0.self_attn.rotary_emb.inv_freq": (16,)}
    shapes = {**tensor_shapes(TIED), **more}
    found = find_weights(write_model(tmp_path, shapes, tie_word_embeddings=True), TIED)
    assert HEAD not in found


def without(name: str) -> Shapes:
    return {other: shape for other, shape in tensor_shapes(MODEL).items() if other != name}


def cut_short(folder: Path) -> Path:
    path = write_model(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return folder


def index_names_more(folder: Path) -> Path:
    (split(folder) / "two.safetensors").unlink()
    return folder


def index_climbs(folder: Path) -> Path:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    return folder


def of_bytes(folder: Path, content: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(content)
    return folder


def in_bytes(folder: Path) -> Path:
    write_tensors(folder / "model.safetensors", tensor_shapes(MODEL), "I8")
    return folder


_NINE_IN_FOUR_BYTES = b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}'
LYING = len(_NINE_IN_FOUR_BYTES).to_bytes(8, "little") + _NINE_IN_FOUR_BYTES + bytes(4)
_BEFORE = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}'
EARLY = len(_BEFORE).to_bytes(8, "little") + _BEFORE
_BETWEEN = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0.5, 4.5]}}'
HALF = len(_BETWEEN).to_bytes(8, "little") + _BETWEEN + bytes(8)

WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing there": (lambda at: at / "none", "/none is not there; expected a model's folder, on every node"),
    "an empty folder": (lambda at: at, "has neither model.safetensors nor model.safetensors.index.json"),
    "another family": (
        lambda at: write_model(at, model_type="qwen2", architectures=None),
        '/config.json: model_type is "qwen2", but llama-tiny has "llama"',
    ),
    "other positions": (lambda at: write_model(at, rope_theta=1e4), "rope_theta is 10000.0, but llama-tiny"),
    "a head that the model ties": (
        lambda at: write_model(at, tie_word_embeddings=True),
        "/config.json: tie_word_embeddings is true, but llama-tiny has false",
    ),
    "positions that nobody computes": (
        lambda at: write_model(at, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        '/config.json: rope_scaling.rope_type: "yarn" needs positions that are scaled in this way',
    ),
    "a tensor less": (lambda at: write_model(at, without(NORM)), f" lacks {NORM} of llama-tiny"),
    "no head": (lambda at: write_model(at, without(HEAD)), f" lacks {HEAD} of llama-tiny"),
    "another shape": (
        lambda at: write_model(at, {**tensor_shapes(MODEL), HEAD: (7, 8)}),
        f"{HEAD} is 7 x 8, but llama-tiny has 6 x 8",
    ),
    "two other shapes": (
        lambda at: write_model(at, {**tensor_shapes(MODEL), HEAD: (7, 8), NORM: (9,)}),
        f"{NORM} is 9, but llama-tiny has 8 (and 1 more)",
    ),
    "a tensor more": (
        lambda at: write_model(at, {**tensor_shapes(MODEL), "model.layers.0.self_attn.q_proj.bias": (8,)}),
        " has model.layers.0.self_attn.q_proj.bias, which llama-tiny has not",
    ),
    "a type that is none of ours": (in_bytes, "is of type I8; expected F32, BF16, F16"),
    "cut short": (cut_short, "/model.safetensors is cut short: "),
    "a file less": (index_names_more, " lacks two.safetensors, which its index names"),
    "an index that climbs": (index_climbs, ".index.json is no index of safetensors files"),
    "an empty file": (lambda at: of_bytes(at, b""), "is not a safetensors file"),
    "a picture": (lambda at: of_bytes(at, b"\x89PNG\r\n\x1a\n" * 9), "is not a safetensors file"),
    "a header that is a list": (
        lambda at: of_bytes(at, (2).to_bytes(8, "little") + b"[]"), "is not a safetensors file"
    ),
    "a header without an end": (
        lambda at: of_bytes(at, (10**6).to_bytes(8, "little") + b"[" * 10**6), "is not a safetensors file"
    ),
    "sizes that lie": (lambda at: of_bytes(at, LYING), "is not a safetensors file"),
    "a beginning before the data": (lambda at: of_bytes(at, EARLY), "is not a safetensors file"),
    "a beginning that is no whole number": (lambda at: of_bytes(at, HALF), "is not a safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line_that_says_where(case: str, tmp_path: Path) -> None:
    make, says = WRONG[case]
    place = make(tmp_path)
    with pytest.raises(Unfit) as refused:
        find_weights(place, MODEL)
    line = str(refused.value)
    assert line.startswith("weights: ") and "\n" not in line
    assert says in line
