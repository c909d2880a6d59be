"""Hugging Face's own models in the shapes of our presets, to compare with."""

import torch
import transformers

from jobs.training.task.presets import ModelConfig


def hugging_face(config: ModelConfig) -> torch.nn.Module:
    """The family's model in ``transformers`` with the same shapes, in fp32 and without dropout."""
    config_type, model_type = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }[config.family]
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_seq_len,
        }
    model: torch.nn.Module = model_type(
        config_type(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=rope,
            sliding_window=config.sliding_window,
            tie_word_embeddings=config.tied_embeddings,
        )
    )
    return model.eval()
