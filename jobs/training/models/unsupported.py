"""What other models compute that the decoder does not, by the names in their ``config.json``. Pure.

A field that stands in none of these tables is unknown, so it may change what the model computes.
"""

from collections.abc import Mapping
from typing import Any

_EXPERTS = "a mixture of experts"
_IMAGES = "an encoder of images or sound"
_DROPOUT = "dropout"
_BIASED_NORMS = "norms with biases"
_NO_POSITIONS = "layers without positions"
_STATE_SPACE = "a state space"
_SCALARS = "fixed factors on embeddings, residuals, attention or logits"
_CAPPED = "capped logits"
_LATENT = "latent attention"

# By ``model_type``.
LACKING_FOR_MODELS: Mapping[str, str] = {
    "bloom": f"ALiBi positions and {_BIASED_NORMS}",
    "cohere": "attention beside the MLP, and fixed factors on logits",
    "cohere2": "attention beside the MLP, and windows in some layers only",
    "deepseek_v2": f"{_LATENT} and {_EXPERTS}",
    "deepseek_v3": f"{_LATENT} and {_EXPERTS}",
    "deepseek_v32": f"{_LATENT} and {_EXPERTS}",
    "falcon": f"attention beside the MLP, and {_BIASED_NORMS}",
    "gemma": "scaled embeddings, GELU in the MLP, and norms that add 1 to their weights",
    "gemma2": f"{_CAPPED}, four norms in each block, and windows in some layers only",
    "gemma3": f"{_IMAGES}, four norms in each block, and windows in some layers only",
    "gemma3_text": "four norms in each block, two sets of positions, and windows in some layers only",
    "gemma3n": f"{_IMAGES}, several residual streams, and embeddings in each layer",
    "gemma3n_text": "several residual streams, and embeddings in each layer",
    "glm": "positions in a part of each head",
    "glm4": "four norms in each block, and positions in a part of each head",
    "glm4_moe": f"{_EXPERTS}, and positions in a part of each head",
    "gpt2": f"learnt positions, biases, and {_BIASED_NORMS}",
    "gpt_neox": f"attention beside the MLP, positions in a part of each head, and {_BIASED_NORMS}",
    "gpt_oss": f"{_EXPERTS}, attention sinks, biases, and windows in every other layer",
    "granite": _SCALARS,
    "granitemoe": f"{_EXPERTS}, and {_SCALARS}",
    "granitemoehybrid": f"{_EXPERTS}, {_STATE_SPACE}, and {_SCALARS}",
    "jamba": f"{_EXPERTS} and {_STATE_SPACE}",
    "llama4": f"{_EXPERTS}, {_IMAGES}, and {_NO_POSITIONS}",
    "llama4_text": f"{_EXPERTS} and {_NO_POSITIONS}",
    "llava": _IMAGES,
    "mamba": _STATE_SPACE,
    "mamba2": _STATE_SPACE,
    "minimax": f"{_EXPERTS} and linear attention",
    "ministral": "windows in some layers only",
    "ministral3": "yarn positions, and queries that are scaled by position",
    "mistral3": _IMAGES,
    "mixtral": _EXPERTS,
    "mllama": f"{_IMAGES} and cross-attention",
    "nemotron": f"squared ReLU in the MLP, and {_BIASED_NORMS}",
    "olmo": "norms without weights",
    "olmo2": "norms after attention and MLP instead of before them",
    "olmo3": "norms after attention and MLP, and windows in some layers only",
    "olmoe": _EXPERTS,
    "opt": f"learnt positions, biases, and {_BIASED_NORMS}",
    "phi": f"attention beside the MLP, positions in a part of each head, and {_BIASED_NORMS}",
    "phi3": "weights of queries, keys and values in one tensor, and of the MLP's gate in another",
    "phi4_multimodal": _IMAGES,
    "phimoe": f"{_EXPERTS}, and {_BIASED_NORMS}",
    "pixtral": _IMAGES,
    "qwen2_5_vl": _IMAGES,
    "qwen2_audio": _IMAGES,
    "qwen2_moe": _EXPERTS,
    "qwen2_vl": _IMAGES,
    "qwen3_5": f"{_IMAGES} and linear attention",
    "qwen3_moe": _EXPERTS,
    "qwen3_next": f"{_EXPERTS} and linear attention",
    "qwen3_vl": _IMAGES,
    "qwen3_vl_moe": f"{_IMAGES} and {_EXPERTS}",
    "smollm3": _NO_POSITIONS,
    "stablelm": f"positions in a part of each head, and {_BIASED_NORMS}",
    "starcoder2": f"biases, GELU in the MLP, and {_BIASED_NORMS}",
}

# By field: the values that change nothing, and what any other one asks for.
LACKING_FOR_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "add_cross_attention": ((False, None), "cross-attention"),
    "attention_bias": ((False, None), "biases in all products of attention"),
    "attention_dropout": ((0, None), _DROPOUT),
    "attention_multiplier": ((None,), _SCALARS),
    "attn_logit_softcapping": ((None,), _CAPPED),
    "attn_pdrop": ((0, None), _DROPOUT),
    "audio_config": ((None,), _IMAGES),
    "auto_map": ((None,), "code that comes with a model"),
    "clip_qkv": ((None,), "clipped queries, keys and values"),
    "compression_config": ((None,), "quantised weights"),
    "embd_pdrop": ((0, None), _DROPOUT),
    "embedding_multiplier": ((1, None), _SCALARS),
    "final_logit_softcapping": ((None,), _CAPPED),
    "first_k_dense_replace": ((None,), _EXPERTS),
    "hidden_act": (("silu", "swish"), "another activation than SiLU in the MLP"),
    "hidden_activation": (("silu", "swish", None), "another activation than SiLU in the MLP"),
    "hidden_dropout": ((0, None), _DROPOUT),
    "hidden_dropout_prob": ((0, None), _DROPOUT),
    "is_encoder_decoder": ((False, None), "an encoder"),
    "kv_lora_rank": ((None,), _LATENT),
    "logit_scale": ((1, None), _SCALARS),
    "logits_scaling": ((1, None), _SCALARS),
    "mlp_bias": ((False, None), "biases in the MLP"),
    "moe_intermediate_size": ((None,), _EXPERTS),
    "n_routed_experts": ((0, None), _EXPERTS),
    "no_rope_layer_interval": ((None,), _NO_POSITIONS),
    "no_rope_layers": ((None,), _NO_POSITIONS),
    "num_experts": ((0, None), _EXPERTS),
    "num_experts_per_tok": ((0, None), _EXPERTS),
    "num_local_experts": ((0, None), _EXPERTS),
    "num_nextn_predict_layers": ((0, None), "a loss of several tokens ahead"),
    "partial_rotary_factor": ((1, None), "positions in a part of each head"),
    "pruned_heads": (({}, None), "pruned heads"),
    "q_lora_rank": ((None,), _LATENT),
    "qk_norm": ((False, None), "norms of queries and keys in this family"),
    "quantization": ((None,), "quantised weights"),
    "quantization_config": ((None,), "quantised weights"),
    "query_pre_attn_scalar": ((None,), _SCALARS),
    "resid_pdrop": ((0, None), _DROPOUT),
    "residual_multiplier": ((1, None), _SCALARS),
    "rope_interleaved": ((False, None), "positions of neighbours in a head"),
    "rotary_pct": ((1, None), "positions in a part of each head"),
    "text_config": ((None,), _IMAGES),
    "use_mrope": ((False, None), "positions in time and space"),
    "use_qk_norm": ((False, None), "norms of queries and keys in this family"),
    "use_sliding_window": ((False, None), "windows in some layers only"),
    "vision_config": ((None,), _IMAGES),
}  # fmt: skip

# These change nothing of what is trained here: they are about tokens, files, tools, or generating text.
IGNORED = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled",
    "_name_or_path", "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "cls_token_id", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder", "is_llama_config", "label2id",
    "length_penalty", "max_length", "max_window_layers", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
})  # fmt: skip
