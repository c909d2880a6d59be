"""A preset as the ``config.json`` beside published weights, so that other tools load what we trained. Pure.

The keys are those of the published files, which every version of ``transformers`` reads, old and new.
"""

from typing import Any

from jobs.training.models.presets import Family, ModelConfig, RopeScaling

_ARCHITECTURES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
}


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """``dtype`` as torch names it. No tokens are named as begin or end: a preset knows no tokenizer."""
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
