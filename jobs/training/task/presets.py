"""The models that can be trained: their shapes and parameter counts. Needs no torch.

A preset's digest is part of a cell's identity, so editing a preset makes new cells and no old row is wrong.
To add a model, add a ``ModelConfig`` to ``PRESETS``; ``CONTRIBUTING.md`` shows an example.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

Family = Literal["llama", "qwen2", "qwen3", "mistral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency scaling for long contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of one decoder. ``max_seq_len`` is the longest sequence that its positions cover.

    With ``qk_norm`` each query and key head is normalised before its positions are turned in.
    """

    name: str
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int
    rope_theta: float
    rms_norm_eps: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    tied_embeddings: bool = False

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


def preset(name: str) -> ModelConfig:
    """The preset called ``name``; ``KeyError`` if there is none."""
    return PRESETS[name]


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
