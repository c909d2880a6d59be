"""A config.json becomes the shape that its model has, or one line that says what is wrong with it."""

import json
import os
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkpointing.errors import Unfit
from jobs.training.models.config_file import read_shape
from jobs.training.models.hugging_face import config_json, shape_of
from jobs.training.task.presets import PRESETS, ModelShape, config_named, preset_of_shape
from tests.conftest import Golden

RECORDED = Path(__file__).parents[2] / "fixtures" / "config_json"
LLAMA = json.loads((RECORDED / "ours" / "llama-3.1-8b.json").read_text())
QWEN_3 = json.loads((RECORDED / "ours" / "qwen-3-8b.json").read_text())
MISTRAL = json.loads((RECORDED / "ours" / "mistral-7b-v0.1.json").read_text())
SCALING = LLAMA["rope_scaling"]


def put(folder: Path, content: object) -> Path:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "config.json").write_bytes(data)
    return folder


def refusal(folder: Path, content: object) -> str:
    with pytest.raises(Unfit) as refused:
        read_shape(put(folder, content))
    line = str(refused.value)
    assert line.startswith(str(folder)) and line.isascii() and "\n" not in line and len(line) < 300
    return line.removeprefix(f"{folder}/")


@pytest.mark.parametrize("name", [path.stem for path in sorted(RECORDED.glob("ours/*.json"))])
def test_a_published_file_has_the_shape_of_its_preset(name: str, tmp_path: Path) -> None:
    shape = read_shape(put(tmp_path, (RECORDED / "ours" / f"{name}.json").read_bytes()))
    assert shape == PRESETS[name].shape
    assert preset_of_shape(shape) == name


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_exported_is_read_back(name: str) -> None:
    shape = replace(PRESETS[name].shape, init_std=0.01)
    assert shape_of(json.loads(json.dumps(config_json(shape, "bfloat16")))) == shape


def as_version_5_spells_it(content: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in content.items()
        if key not in ("rope_theta", "rope_scaling", "torch_dtype")
    }
    rope = content.get("rope_scaling") or {"rope_type": "default"}
    return {**kept, "dtype": "bfloat16", "rope_parameters": {**rope, "rope_theta": content["rope_theta"]}}


@pytest.mark.parametrize("content", [LLAMA, QWEN_3, MISTRAL], ids=["llama", "qwen3", "mistral"])
def test_both_spellings_of_positions_are_read(content: dict[str, Any]) -> None:
    assert shape_of(as_version_5_spells_it(content)) == shape_of(content)


def test_other_models_and_fields_are_refused_with_what_is_missing(tmp_path: Path, golden: Golden) -> None:
    lines = []
    for path in sorted(RECORDED.glob("others/*.json")):
        lines += [f"{path.stem}:", f"  {refusal(tmp_path, path.read_bytes())}"]
    for case, content in ODD.items():
        lines += [f"{case}:", f"  {refusal(tmp_path, content)}"]
    golden("config_refusals.txt", "\n".join(lines) + "\n")


# What is odd about a file -> its content. The messages are in golden/config_refusals.txt.
ODD: dict[str, object] = {
    "an unknown family": {**LLAMA, "model_type": "lama"},
    "no family": {key: value for key, value in LLAMA.items() if key != "model_type"},
    "a family that is a list": {**LLAMA, "model_type": ["llama"]},
    "another head": {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
    "an unknown field": {**LLAMA, "dual_chunk_attention_config": {}},
    "two unknown fields": {**LLAMA, "use_magic\n": 1, "b": 2},
    "experts in a llama": {**LLAMA, "num_local_experts": 8},
    "dropout": {**LLAMA, "attention_dropout": 0.1},
    "a bias": {**QWEN_3, "attention_bias": True},
    "a bias in the MLP": {**LLAMA, "mlp_bias": True},
    "GELU": {**LLAMA, "hidden_act": "gelu"},
    "windows in Qwen": {**QWEN_3, "use_sliding_window": True, "sliding_window": 4096},
    "windows by layer": {**QWEN_3, "layer_types": ["full_attention", "sliding_attention"]},
    "windows by layer in Mistral": {**MISTRAL, "layer_types": ["full_attention"] * 32},
    "a window in llama": {**LLAMA, "sliding_window": 4096},
    "partial positions": {**LLAMA, "partial_rotary_factor": 0.5},
    "partial positions in version 5": {**MISTRAL, "rope_parameters": {"partial_rotary_factor": 0.5}},
    "yarn": {**QWEN_3, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "dynamic": {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "longrope": {**LLAMA, "rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
    "positions for each kind of layer": {**MISTRAL, "rope_parameters": {"full_attention": {}}},
    "positions that are a number": {**LLAMA, "rope_scaling": 2},
    "two kinds of positions": {**LLAMA, "rope_scaling": {**SCALING, "type": "linear"}},
    "a field that llama3 does not have": {**LLAMA, "rope_scaling": {**SCALING, "attention_factor": 2.0}},
    "a factor less": {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
    "a factor below 1": {**LLAMA, "rope_scaling": {**SCALING, "factor": 0.5}},
    "low above high": {**LLAMA, "rope_scaling": {**SCALING, "low_freq_factor": 4.0}},
    "two bases": {**LLAMA, "rope_parameters": {**SCALING, "rope_theta": 1e4}, "rope_scaling": None},
    "two scalings": {**LLAMA, "rope_parameters": {"rope_type": "default"}},
    "code": {**LLAMA, "auto_map": {"AutoConfig": "evil.Config"}},
    "quantised": {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
    "a size less": {key: value for key, value in LLAMA.items() if key != "vocab_size"},
    "no layers": {**LLAMA, "num_hidden_layers": 0},
    "a billion layers": {**LLAMA, "num_hidden_layers": 10**9},
    "a negative size": {**LLAMA, "hidden_size": -4096},
    "a size without end": {**LLAMA, "hidden_size": 1e300},
    "half a size": {**LLAMA, "intermediate_size": 0.5},
    "a size that is text": {**LLAMA, "vocab_size": "128256"},
    "a size that is true": {**LLAMA, "vocab_size": True},
    "a size that is null": {**LLAMA, "max_position_embeddings": None},
    "heads that can't be shared out": {**LLAMA, "num_key_value_heads": 5},
    "more heads of keys than of queries": {**LLAMA, "num_key_value_heads": 64},
    "an odd head": {**LLAMA, "head_dim": 127},
    "a hidden size that heads can't share": {**LLAMA, "hidden_size": 4100},
    "a base below 1": {**LLAMA, "rope_theta": 0},
    "an eps of nothing": {**LLAMA, "rms_norm_eps": 0.0},
    "first values of nothing": {**LLAMA, "initializer_range": 0.0},
    "a word for tied": {**LLAMA, "tie_word_embeddings": "yes"},
    "a window of nothing": {**MISTRAL, "sliding_window": 0},
    "a list": [LLAMA],
    "a number": 3,
    "an empty file": b"",
    "half a file": json.dumps(LLAMA, indent=1).encode()[:300],
    "a picture": b"\x89PNG\r\n\x1a\n",
    "UTF-16": json.dumps(LLAMA).encode("utf-16"),
    "not a number": b'{"vocab_size": NaN}',
    "an infinite number": b'{"model_type": "llama", "vocab_size": 1e999}',
    "infinite positions": json.dumps(LLAMA).replace("500000.0", "1e999").encode(),
    "a number of a thousand digits": b'{"vocab_size": ' + b"9" * 1000 + b"}",
    "a field twice": b'{"vocab_size": 1, "vocab_size": 2}',
    "brackets": b'{"a": ' + b"[" * 500_000,
    "levels": b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    "a megabyte": b'{"a": "' + b"a" * 2**20 + b'"}',
}  # fmt: skip


def test_a_folder_without_the_file_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file", tmp_path / "link", Path("a\0b")):
        assert read_shape(folder) is None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_at_once(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "config.json")
    with pytest.raises(Unfit, match=r"config.json: (is not a file|can't be read \(Is a directory\))$"):
        read_shape(tmp_path)


def test_a_link_to_the_file_is_followed_as_caches_of_hugging_face_need(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text(json.dumps(LLAMA))
    (tmp_path / "config.json").symlink_to("blob")
    assert read_shape(tmp_path) == PRESETS["llama-3.1-8b"].shape


def test_two_shapes_never_share_a_name_and_one_shape_keeps_its_own() -> None:
    shape = PRESETS["llama-tiny"].shape
    names = {config_named(replace(shape, num_layers=layers), "mine").name for layers in range(1, 100)}
    assert len(names) == 99
    assert config_named(replace(shape, num_layers=2), "mine").name == "mine-f0fc8fda"
    assert config_named(shape, "llama-tiny") is PRESETS["llama-tiny"]
    assert config_named(shape, "mine").name.startswith("mine-")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=20,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"\xff")
@example(b'"\\ud800"')
def test_no_bytes_at_all_make_anything_but_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    refusal(folder, data)


KEYS = sorted(
    {*LLAMA, *QWEN_3, *MISTRAL, "rope_parameters", "layer_types", "partial_rotary_factor", "sliding_window"}
)
NEAR = st.sampled_from([0, 1, -1, 2, 3, 2**31, 2**63, 10**39, 1e300, 0.5, 1e-320, True, "", "silu", [], {}])
ROPE = st.dictionaries(
    st.sampled_from([*SCALING, "type", "rope_theta", "partial_rotary_factor"]), NEAR | JSON
)


@given(
    st.sampled_from([LLAMA, QWEN_3, MISTRAL]),
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), NEAR | JSON | ROPE, max_size=4),
    st.sets(st.sampled_from(KEYS), max_size=4),
)
def test_a_file_with_odd_values_is_a_sound_shape_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], odd: dict[str, Any], left_out: set[str]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "values"
    folder.mkdir(exist_ok=True)
    changed = {key: value for key, value in (content | odd).items() if key not in left_out}
    try:
        shape = read_shape(put(folder, changed))
    except Unfit as error:
        assert "\n" not in str(error) and str(error).isascii() and len(str(error)) < 400
    else:
        assert isinstance(shape, ModelShape)
        assert isfinite(shape.rope_theta) and shape.num_parameters > 0
        assert shape_of(json.loads(json.dumps(config_json(shape, "float32")))) == shape
