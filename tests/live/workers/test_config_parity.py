"""What ``transformers`` writes as a config.json is read as the model that it computes."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.spec_schema.run_spec import RunSpec
from jobs.training.models.decoder import Decoder
from jobs.training.models.hugging_face import config_json, shape_of, tensor_shapes
from jobs.training.models.weights import find_weights
from jobs.training.task.presets import ModelConfig

transformers = pytest.importorskip("transformers", reason="a test extra: pip install longhaul[test]")

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
LENGTH = 40
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def random_config(family: str, seed: int) -> Any:
    dice = random.Random(f"{family}{seed}")
    kv_heads, head_dim = dice.choice([1, 2, 3]), dice.choice([8, 16, 24])
    heads = kv_heads * dice.choice([1, 2])
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": dice.choice([1e4, 5e5, 1234.5])}
    if dice.random() < 0.5:
        rope |= {"rope_type": "llama3", "factor": dice.choice([2.0, 8.0]), "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    return transformers.AutoConfig.for_model(
        family,
        vocab_size=dice.randrange(50, 100),
        hidden_size=heads * dice.choice([8, 12]),
        intermediate_size=dice.randrange(20, 60),
        num_hidden_layers=dice.choice([1, 2, 3]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=64,
        rms_norm_eps=dice.choice([1e-6, 1e-5, 1e-3]),
        rope_parameters=rope,
        tie_word_embeddings=dice.random() < 0.5,
        initializer_range=dice.choice([0.02, 0.1]),
        **({"sliding_window": dice.choice([None, 8, LENGTH])} if family == "mistral" else {}),
    )


def model_in(folder: Path) -> ModelConfig:
    spec = {"name": "r", "model": {"path": str(folder)}, "steps": 1}
    return RunSpec.model_validate_json(json.dumps(spec)).model.config


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_logits_loss_and_gradients_of_a_random_config_equal_those_of_transformers(
    family: str, seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(seed)
    config = random_config(family, seed)
    config.save_pretrained(tmp_path)
    ours, theirs = Decoder(model_in(tmp_path)), transformers.AutoModelForCausalLM.from_config(config).eval()
    ours.load_state_dict(
        {name: value for name, value in theirs.state_dict().items() if name in ours.state_dict()}
    )
    tokens = torch.randint(0, config.vocab_size, (2, LENGTH + 1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    expected = theirs(ids, labels=labels, shift_labels=labels)
    assert torch.allclose(ours(ids), expected.logits, atol=1e-5, rtol=1e-5)
    loss = ours(ids, labels)
    assert loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    loss.backward()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_weights_beside_the_config_fit_and_transformers_reads_what_is_written_back(
    family: str, seed: int, tmp_path: Path
) -> None:
    config = random_config(family, seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = model_in(tmp_path)
    found = find_weights(tmp_path, model)
    assert {name: stored.shape for name, stored in found.items()} == tensor_shapes(model)

    (tmp_path / "config.json").write_text(json.dumps(config_json(model, "float32")))
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    same = (
        "rope_parameters",
        "head_dim",
        "sliding_window",
        "tie_word_embeddings",
        "initializer_range",
        *SIZES,
    )
    assert {key: getattr(again, key) for key in same if hasattr(config, key)} == {
        key: getattr(config, key) for key in same if hasattr(config, key)
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_leaves_out_is_what_transformers_takes(family: str, tmp_path: Path) -> None:
    content = {
        "model_type": family,
        **dict.fromkeys(SIZES, 32),
        "max_position_embeddings": 64,
        "hidden_size": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    ours = shape_of(content)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 256 // 32)
    assert (ours.rms_norm_eps, ours.init_std) == (theirs.rms_norm_eps, theirs.initializer_range)
    assert (ours.rope_theta, ours.rope_scaling) == (theirs.rope_parameters["rope_theta"], None)
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    assert ours.tied_embeddings is theirs.tie_word_embeddings
