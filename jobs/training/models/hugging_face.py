"""Describes a model in Hugging Face's terms: ``config.json``, tensor names and shapes. Pure.

``config_json`` writes the keys of the published files, which old and new versions of ``transformers`` read.
``shape_of`` reads what either of them has written, and takes what a file leaves out from their defaults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from math import isfinite
from typing import Any

from checkpointing.errors import Unfit
from jobs.training.models.json_file import key_text, value_text
from jobs.training.models.unsupported import IGNORED, LACKING_FOR_FIELDS, LACKING_FOR_MODELS
from jobs.training.task.presets import Family, ModelShape, RopeScaling, out_of_bounds

_ARCHITECTURES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
# What a family has although no field says so.
_OF_FAMILY: dict[Family, dict[str, bool]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "mistral": {},
}
# The fields of a shape by their keys in the file. A file must have the first ones.
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_seq_len",
}
_OPTIONAL = {
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "rms_norm_eps": "rms_norm_eps",
    "sliding_window": "sliding_window",
    "rope_theta": "rope_theta",
    "tie_word_embeddings": "tied_embeddings",
    "initializer_range": "init_std",
}
_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_seq_len",
}
# Defaults of ``transformers``; None stands for what the sizes imply.
_USUAL: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}
_USUAL_OF_FAMILY: dict[Family, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "head_dim": None},
    "qwen2": {"num_key_value_heads": 32, "head_dim": None},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "mistral": {"num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
}
_KNOWN = {
    "model_type", "architectures", "layer_types", "rope_scaling", "rope_parameters",
    *_SIZES, *_OPTIONAL, *LACKING_FOR_FIELDS, *IGNORED,
}  # fmt: skip
_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def _fields_by_key() -> dict[str, "Field[Any]"]:
    of_shape = {field.name: field for field in fields(ModelShape)}
    of_scaling = {field.name: field for field in fields(RopeScaling)}
    return {key: of_shape[name] for key, name in {**_SIZES, **_OPTIONAL}.items()} | {
        key: of_scaling[name] for key, name in _SCALING.items()
    }


_FIELDS = _fields_by_key()


def config_json(shape: ModelShape, dtype: str) -> dict[str, Any]:
    """The content of ``config.json``. ``dtype`` is torch's name.

    No begin or end tokens are named: a model's shape knows no tokenizer.
    """
    return {
        "architectures": [_ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "torch_dtype": dtype,
        **{key: getattr(shape, name) for key, name in {**_SIZES, **_OPTIONAL}.items()},
        "rope_scaling": _rope_scaling(shape.rope_scaling),
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def differences(one: ModelShape, other: ModelShape) -> dict[str, tuple[Any, Any]]:
    """The fields of ``config.json`` in which two shapes differ, with both values."""
    ours, theirs = config_json(one, ""), config_json(other, "")
    keys = [key for key in ours if ours[key] != theirs[key] and key != "architectures"]
    return {key: (ours[key], theirs[key]) for key in keys}


def check_expressible(shape: ModelShape) -> None:
    """Raises ``Unfit`` if no ``config.json`` says what the shape is: then nobody could load its weights."""
    said = shape_of(config_json(shape, ""))
    for field in fields(ModelShape):
        found, expected = getattr(shape, field.name), getattr(said, field.name)
        if found != expected:
            usual = f"{shape.family} models have {value_text(expected)}"
            raise Unfit(f"{field.name}: found {value_text(found)}, but {usual}")


def shape_of(content: Mapping[str, Any]) -> ModelShape:
    """The shape that the content of a ``config.json`` describes.

    Raises ``Unfit`` with the field that the decoder does not know or that makes no sense.
    """
    family = _family(content)
    if problem := next(_unsupported(content), None):
        raise Unfit(problem)
    sizes = {name: _number(content, key) for key, name in _SIZES.items()}
    given = {**_USUAL, **_USUAL_OF_FAMILY[family], **content}
    place, rope = _positions(content)
    try:
        return ModelShape(
            family=family,
            **sizes,
            num_kv_heads=_implied(given, "num_key_value_heads", sizes["num_heads"]),
            head_dim=_implied(given, "head_dim", _even_share(family, sizes)),
            rms_norm_eps=_number(given, "rms_norm_eps"),
            rope_theta=_theta(given, place, rope, is_given="rope_theta" in content),
            rope_scaling=_scaling(place, rope),
            sliding_window=_window(given, family),
            tied_embeddings=_truth(given, "tie_word_embeddings"),
            init_std=_number(given, "initializer_range"),
            **_OF_FAMILY[family],
        )
    except ValueError as error:
        raise Unfit(str(error)) from None


def tensor_shapes(config: ModelShape) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its name. A tied output head is not a parameter of its own."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(config.num_layers):
        block = f"model.layers.{number}"
        shapes |= {f"{block}.{name}": shape for name, shape in _block_shapes(config).items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if config.tied_embeddings else {**shapes, "lm_head.weight": (vocabulary, hidden)}


def _block_shapes(config: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    outputs = {"q": config.attention_size, "k": config.kv_size, "v": config.kv_size}
    weights = {f"self_attn.{name}_proj.weight": (size, hidden) for name, size in outputs.items()}
    biases = {f"self_attn.{name}_proj.bias": (size,) for name, size in outputs.items()}
    norms = {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in ("q", "k")}
    return {
        "input_layernorm.weight": (hidden,),
        **weights,
        **(biases if config.qkv_bias else {}),
        **(norms if config.qk_norm else {}),
        "self_attn.o_proj.weight": (hidden, config.attention_size),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }


def _rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {"rope_type": "llama3", **{key: getattr(scaling, name) for key, name in _SCALING.items()}}


def _family(content: Mapping[str, Any]) -> Family:
    found = content.get("model_type")
    families = ", ".join(_ARCHITECTURES)
    if "model_type" not in content:
        raise Unfit(f"model_type: is missing; expected one of {families}")
    if isinstance(found, str) and (what := LACKING_FOR_MODELS.get(found)):
        raise Unfit(_lacks("model_type", found, what))
    family = next((family for family in _ARCHITECTURES if family == found), None)
    if family is None:
        raise Unfit(
            f"model_type: {value_text(found)} is no family that Longhaul's decoder knows ({families})"
        )
    heads = content.get("architectures")
    if heads not in (None, [_ARCHITECTURES[family]]):
        raise Unfit(f"architectures: found {value_text(heads)}, expected {_ARCHITECTURES[family]} alone")
    return family


def _unsupported(content: Mapping[str, Any]) -> Iterator[str]:
    for key, (harmless, what) in LACKING_FOR_FIELDS.items():
        if key in content and content[key] not in harmless:
            yield _lacks(key, content[key], what)
    if unknown := [key for key in content if key not in _KNOWN]:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        yield (
            f"{key_text(unknown[0])}: is a field that Longhaul does not know{more}, so it may change what "
            "the model computes; take it out of the file if it does not"
        )


def _lacks(field: str, value: object, what: str) -> str:
    return f"{field}: {value_text(value)} needs {what}, which Longhaul's decoder lacks"


def _number(content: Mapping[str, Any], key: str, place: str = "") -> Any:
    """The number at ``key``, of the type and within the bounds of its field. ``place`` is for messages."""
    if key not in content:
        raise Unfit(f"{place}{key}: is missing")
    field, found = _FIELDS[key], content[key]
    is_whole = field.type in (int, int | None)
    expected: str | None = "a whole number" if is_whole else "a number"
    is_number = isinstance(found, int if is_whole else int | float) and not isinstance(found, bool)
    if is_number and isfinite(found):
        expected = out_of_bounds(found, field.metadata)
    if expected:
        raise Unfit(f"{place}{key}: found {value_text(found)}, expected {expected}")
    return found if is_whole else float(found)


def _truth(content: Mapping[str, Any], key: str) -> bool:
    found = content[key]
    if not isinstance(found, bool):
        raise Unfit(f"{key}: found {value_text(found)}, expected true or false")
    return found


def _implied(content: Mapping[str, Any], key: str, implied: int) -> int:
    number: int = implied if content[key] is None else _number(content, key)
    return number


def _even_share(family: Family, sizes: Mapping[str, int]) -> int:
    """A head's share of the hidden size. Only Llama's code in ``transformers`` insists that it is whole."""
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    if hidden % heads and family == "llama":
        raise Unfit(f"hidden_size: {hidden} can't be shared out among {heads} heads (num_attention_heads)")
    return hidden // heads


def _window(content: Mapping[str, Any], family: Family) -> int | None:
    """The window of all layers. Qwen has none unless ``use_sliding_window`` is true."""
    found = content.get("sliding_window") if family in ("llama", "mistral") else None
    kinds = content.get("layer_types")
    if kinds is not None and (
        found is not None or not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)
    ):
        raise Unfit(_lacks("layer_types", kinds, "windows in some layers only"))
    if found is None:
        return None
    if family == "llama":
        raise Unfit(_lacks("sliding_window", found, "a window in this family"))
    number: int = _number(content, "sliding_window")
    return number


def _positions(content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The object about positions, and its name with a dot: ``transformers`` 5 and 4 call it differently."""
    found = {key: content[key] for key in ("rope_parameters", "rope_scaling") if content.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, dict):
            raise Unfit(f"{key}: found {value_text(value)}, expected an object or null")
    if len(found) == 2 and found["rope_parameters"] != found["rope_scaling"]:
        raise Unfit("rope_scaling: differs from rope_parameters; expected one of them")
    return next(((f"{key}.", value) for key, value in found.items()), ("", {}))


def _theta(content: Mapping[str, Any], place: str, rope: Mapping[str, Any], *, is_given: bool) -> float:
    inner = rope.get("rope_theta")
    if is_given and inner is not None and inner != content["rope_theta"]:
        found = value_text(content["rope_theta"])
        raise Unfit(f"rope_theta: found {found}, but {place}rope_theta is {value_text(inner)}")
    theta: float = _number(content, "rope_theta") if inner is None else _number(rope, "rope_theta", place)
    return theta


def _scaling(place: str, rope: Mapping[str, Any]) -> RopeScaling | None:
    kinds = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    kind = kinds[0] if kinds else "default"
    if kinds[1:] and kinds[1] != kind:
        raise Unfit(f"{place}type: found {value_text(kinds[1])}, but {place}rope_type is {value_text(kind)}")
    if kind not in ("default", "llama3"):
        raise Unfit(_lacks(f"{place}rope_type", kind, "positions that are scaled in this way"))
    if rope.get("partial_rotary_factor") not in (1, None):
        found = rope["partial_rotary_factor"]
        raise Unfit(_lacks(f"{place}partial_rotary_factor", found, "positions in a part of each head"))
    known = _ROPE | (_SCALING.keys() if kind == "llama3" else set())
    if unknown := [key for key in rope if key not in known]:
        raise Unfit(f"{place}{key_text(unknown[0])}: is no field of {kind} positions")
    if kind == "default":
        return None
    return RopeScaling(**{name: _number(rope, key, place) for key, name in _SCALING.items()})
