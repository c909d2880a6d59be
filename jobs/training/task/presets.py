"""The models that can be trained: their shapes and parameter counts. Needs no torch.

A preset's digest is part of a cell's identity, so editing a preset makes new cells and no old row is wrong.
To add a model, add a ``ModelConfig`` to ``PRESETS``; ``CONTRIBUTING.md`` shows an example. Other shapes come
from files (``models.config_file``) and are named by ``config_named``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

Family = Literal["llama", "qwen2", "qwen3", "mistral"]

# With a digest of 8 digits behind it, a name leaves room in a file's name for the rest of a run's.
MOST_LABEL_CHARS = 40
_DIGEST_CHARS = 8
_MOST_POSITIONS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency scaling for long contexts. The metadata are the bounds of each field."""

    factor: float = field(metadata={"ge": 1, "le": 1e6})
    low_freq_factor: float = field(metadata={"gt": 0, "le": 1e6})
    high_freq_factor: float = field(metadata={"gt": 0, "le": 1e6})
    original_max_seq_len: int = field(metadata={"ge": 1, "le": _MOST_POSITIONS})

    def __post_init__(self) -> None:
        _check_bounds(self)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor:g} is not below high_freq_factor "
                f"{self.high_freq_factor:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """All that determines what a decoder computes. ``ValueError`` if there is no such decoder.

    * ``max_seq_len`` is the longest sequence that its positions cover.
    * With ``qk_norm`` each query and key head is normalised before its positions are turned in.
    * Random first weights have the standard deviation ``init_std``.

    The metadata are the bounds of each field.
    """

    family: Family
    vocab_size: int = field(metadata={"ge": 1, "le": 2**24})
    hidden_size: int = field(metadata={"ge": 1, "le": 2**20})
    intermediate_size: int = field(metadata={"ge": 1, "le": 2**22})
    num_layers: int = field(metadata={"ge": 1, "le": 10_000})
    num_heads: int = field(metadata={"ge": 1, "le": 2**16})
    num_kv_heads: int = field(metadata={"ge": 1, "le": 2**16})
    head_dim: int = field(metadata={"ge": 2, "le": 2**16})
    max_seq_len: int = field(metadata={"ge": 1, "le": _MOST_POSITIONS})
    rope_theta: float = field(metadata={"ge": 1, "le": 1e12})
    rms_norm_eps: float = field(metadata={"gt": 0, "le": 1})
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = field(default=None, metadata={"ge": 1, "le": _MOST_POSITIONS})
    tied_embeddings: bool = False
    init_std: float = field(default=0.02, metadata={"gt": 0, "le": 1})

    def __post_init__(self) -> None:
        _check_bounds(self)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads can't be shared out among {self.num_kv_heads} heads of keys "
                "and values"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"heads of {self.head_dim} can't be turned by positions; expected an even number"
            )

    @property
    def attention_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_embedding_parameters(self) -> int:
        """The input embedding alone; an output head that is not tied has as many parameters again."""
        return self.vocab_size * self.hidden_size

    @property
    def num_block_parameters(self) -> int:
        """The parameters of one decoder block: attention, gated MLP and norms."""
        qkv_size = self.attention_size + 2 * self.kv_size
        attention = self.hidden_size * (qkv_size + self.attention_size)
        bias = qkv_size if self.qkv_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return attention + bias + mlp + norms

    @property
    def num_parameters(self) -> int:
        """All trained parameters; a tied embedding counts once."""
        embeddings = self.num_embedding_parameters * (1 if self.tied_embeddings else 2)
        return embeddings + self.num_layers * self.num_block_parameters + self.hidden_size

    @property
    def num_matmul_parameters(self) -> int:
        """All parameters but the input embedding. A tied embedding counts: it is the output head too."""
        if self.tied_embeddings:
            return self.num_parameters
        return self.num_parameters - self.num_embedding_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelShape):
    """A shape with the name that rows, checkpoints and messages call it by."""

    name: str

    @property
    def shape(self) -> ModelShape:
        return ModelShape(**_values(self))


def preset(name: str) -> ModelConfig:
    """The preset called ``name``; ``KeyError`` if there is none."""
    return PRESETS[name]


def preset_of_shape(shape: ModelShape) -> str | None:
    """The name of the preset with this shape."""
    return next((name for name, config in PRESETS.items() if config.shape == shape), None)


def config_named(shape: ModelShape, label: str) -> ModelConfig:
    """The shape under a name that no other shape has: ``label`` and a digest of the shape.

    A preset's shape with the preset's name as its label is that preset.
    """
    if label in PRESETS and PRESETS[label].shape == shape:
        return PRESETS[label]
    return ModelConfig(name=f"{label}-{_digest(shape)}", **_values(shape))


def out_of_bounds(value: float, bounds: Mapping[str, Any]) -> str | None:
    """What was expected instead of ``value``, such as ``at least 1``; None if the value is within bounds."""
    if "ge" in bounds and not value >= bounds["ge"]:
        return f"at least {bounds['ge']:g}"
    if "gt" in bounds and not value > bounds["gt"]:
        return f"more than {bounds['gt']:g}"
    if "le" in bounds and not value <= bounds["le"]:
        return f"at most {bounds['le']:,}"
    return None


def _check_bounds(shape: "ModelShape | RopeScaling") -> None:
    for one in fields(shape):
        value = getattr(shape, one.name)
        if isinstance(value, int | float) and (expected := out_of_bounds(value, one.metadata)):
            raise ValueError(f"{one.name} is {value!r}, expected {expected}")


def _values(shape: ModelShape) -> dict[str, Any]:
    return {one.name: getattr(shape, one.name) for one in fields(ModelShape)}


def _digest(shape: ModelShape) -> str:
    """A digest of what is not the usual, so that a field that comes later changes no name."""
    usual = {one.name: one.default for one in fields(ModelShape)}
    values = {name: value for name, value in asdict(shape).items() if value != usual[name]}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


_LLAMA_3_1_SCALING = RopeScaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192
)
_llama_3 = partial(
    ModelConfig,
    family="llama",
    vocab_size=128256,
    num_kv_heads=8,
    head_dim=128,
    max_seq_len=131072,
    rope_theta=5e5,
    rms_norm_eps=1e-5,
    rope_scaling=_LLAMA_3_1_SCALING,
)
_llama_3_2 = partial(_llama_3, rope_scaling=replace(_LLAMA_3_1_SCALING, factor=32.0), tied_embeddings=True)
_qwen_2_5 = partial(
    ModelConfig,
    family="qwen2",
    vocab_size=152064,
    num_kv_heads=8,
    head_dim=128,
    max_seq_len=131072,
    rope_theta=1e6,
    rms_norm_eps=1e-5,
    qkv_bias=True,
)
_qwen_3 = partial(
    ModelConfig,
    family="qwen3",
    vocab_size=151936,
    num_kv_heads=8,
    head_dim=128,
    max_seq_len=32768,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    qk_norm=True,
)
_qwen_3_tied = partial(_qwen_3, tied_embeddings=True)
_mistral = partial(
    ModelConfig,
    family="mistral",
    num_kv_heads=8,
    head_dim=128,
    max_seq_len=32768,
    rms_norm_eps=1e-5,
)

_PUBLISHED = (
    # https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json, and so on.
    _llama_3(name="llama-3.1-8b", hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32),
    _llama_3_2(
        name="llama-3.2-1b",
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        head_dim=64,
    ),
    _llama_3_2(name="llama-3.2-3b", hidden_size=3072, intermediate_size=8192, num_layers=28, num_heads=24),
    # https://huggingface.co/meta-llama/Llama-3.3-70B-Instruct/blob/main/config.json
    _llama_3(name="llama-3.3-70b", hidden_size=8192, intermediate_size=28672, num_layers=80, num_heads=64),
    # https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json, and so on.
    _qwen_2_5(
        name="qwen-2.5-7b",
        hidden_size=3584,
        intermediate_size=18944,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        rms_norm_eps=1e-6,
    ),
    _qwen_2_5(
        name="qwen-2.5-1.5b",
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_layers=28,
        num_heads=12,
        num_kv_heads=2,
        rms_norm_eps=1e-6,
        tied_embeddings=True,
    ),
    _qwen_2_5(
        name="qwen-2.5-0.5b",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        max_seq_len=32768,
        rms_norm_eps=1e-6,
        tied_embeddings=True,
    ),
    _qwen_2_5(name="qwen-2.5-14b", hidden_size=5120, intermediate_size=13824, num_layers=48, num_heads=40),
    _qwen_2_5(name="qwen-2.5-32b", hidden_size=5120, intermediate_size=27648, num_layers=64, num_heads=40),
    _qwen_2_5(name="qwen-2.5-72b", hidden_size=8192, intermediate_size=29568, num_layers=80, num_heads=64),
    # https://huggingface.co/Qwen/Qwen3-0.6B-Base/blob/main/config.json, and so on.
    _qwen_3_tied(name="qwen-3-0.6b", hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16),
    _qwen_3_tied(name="qwen-3-1.7b", hidden_size=2048, intermediate_size=6144, num_layers=28, num_heads=16),
    _qwen_3_tied(name="qwen-3-4b", hidden_size=2560, intermediate_size=9728, num_layers=36, num_heads=32),
    _qwen_3(name="qwen-3-8b", hidden_size=4096, intermediate_size=12288, num_layers=36, num_heads=32),
    _qwen_3(name="qwen-3-14b", hidden_size=5120, intermediate_size=17408, num_layers=40, num_heads=40),
    # https://huggingface.co/Qwen/Qwen3-32B/blob/main/config.json
    _qwen_3(
        name="qwen-3-32b",
        hidden_size=5120,
        intermediate_size=25600,
        num_layers=64,
        num_heads=64,
        max_seq_len=40960,
    ),
    # https://huggingface.co/mistralai/Mistral-7B-v0.3/blob/main/config.json, and so on.
    _mistral(
        name="mistral-7b",
        vocab_size=32768,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        rope_theta=1e6,
    ),
    _mistral(
        name="mistral-7b-v0.1",
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        rope_theta=1e4,
        sliding_window=4096,
    ),
    # https://huggingface.co/mistralai/Mistral-Small-24B-Base-2501/blob/main/config.json
    _mistral(
        name="mistral-small-24b",
        vocab_size=131072,
        hidden_size=5120,
        intermediate_size=32768,
        num_layers=40,
        num_heads=32,
        rope_theta=1e8,
    ),
)

# Small enough for a sweep on two cores, with every feature of the model's family.
_TINY = (
    ModelConfig(
        name="llama-tiny",
        family="llama",
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_seq_len=512,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
        rope_scaling=RopeScaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=64
        ),
    ),
    ModelConfig(
        name="qwen-tiny",
        family="qwen2",
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_seq_len=512,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qkv_bias=True,
        tied_embeddings=True,
    ),
    ModelConfig(
        name="qwen-3-tiny",
        family="qwen3",
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=48,
        max_seq_len=512,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qk_norm=True,
        tied_embeddings=True,
    ),
    ModelConfig(
        name="mistral-tiny",
        family="mistral",
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=1,
        head_dim=32,
        max_seq_len=512,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        sliding_window=32,
    ),
)

# Large enough that a process's memory is mostly training state, to check the memory prediction on CPU.
_MINI = (
    ModelConfig(
        name="llama-mini",
        family="llama",
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        max_seq_len=2048,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
        rope_scaling=RopeScaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=256
        ),
    ),
    ModelConfig(
        name="qwen-mini",
        family="qwen2",
        vocab_size=32768,
        hidden_size=512,
        intermediate_size=1408,
        num_layers=8,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        max_seq_len=2048,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qkv_bias=True,
        tied_embeddings=True,
    ),
    ModelConfig(
        name="qwen-3-mini",
        family="qwen3",
        vocab_size=32768,
        hidden_size=512,
        intermediate_size=1408,
        num_layers=8,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        max_seq_len=2048,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qk_norm=True,
        tied_embeddings=True,
    ),
    ModelConfig(
        name="mistral-mini",
        family="mistral",
        vocab_size=8192,
        hidden_size=640,
        intermediate_size=1792,
        num_layers=8,
        num_heads=10,
        num_kv_heads=2,
        head_dim=64,
        max_seq_len=2048,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        sliding_window=256,
    ),
)

PRESETS: dict[str, ModelConfig] = {config.name: config for config in (*_PUBLISHED, *_TINY, *_MINI)}
