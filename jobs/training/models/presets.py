"""The models we know: their shapes and the counts that follow from them. Needs no torch.

A preset's digest is part of a cell's identity, so editing one makes new cells, never wrong old rows.
To add a model, add a ``ModelConfig`` to ``PRESETS``; ``docs/extending.md`` shows an example.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "qwen2", "mistral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency scaling for long contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder. ``max_seq_len`` is the longest sequence that its positions cover."""

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
    sliding_window: int | None = None
    tied_embeddings: bool = False

    @property
    def attention_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        raise NotImplementedError

    @property
    def num_matmul_parameters(self) -> int:
        """All parameters minus the input embedding, which is kept once if it is tied."""
        raise NotImplementedError
