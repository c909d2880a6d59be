"""Describes a preset in Hugging Face's terms: ``config.json``, tensor names and shapes. Pure.

The keys are those of the published files, which old and new versions of ``transformers`` read.
"""

from typing import Any

from jobs.training.task.presets import Family, ModelConfig, RopeScaling

_ARCHITECTURES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The content of ``config.json``. ``dtype`` is torch's name.

    No begin or end tokens are named: a preset knows no tokenizer.
    """
    return {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "rms_norm_eps": config.rms_norm_eps,
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its name. A tied output head is not a parameter of its own."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(config.num_layers):
        block = f"model.layers.{number}"
        shapes |= {f"{block}.{name}": shape for name, shape in _block_shapes(config).items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if config.tied_embeddings else {**shapes, "lm_head.weight": (vocabulary, hidden)}


def _block_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
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
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_seq_len,
    }
