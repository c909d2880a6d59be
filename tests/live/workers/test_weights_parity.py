"""Hugging Face's own implementation of each family computes what ours does, from the same weights."""

import dataclasses

import pytest
import torch

from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill
from jobs.training.task.presets import ModelConfig, RopeScaling, preset

pytest.importorskip("transformers", reason="a test extra: pip install longhaul[test]")
from tests.live.hugging_face_models import hugging_face  # needs it

LENGTH = 96
SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=64)
LLAMA, QWEN, MISTRAL = preset("llama-tiny"), preset("qwen-tiny"), preset("mistral-tiny")
QWEN_3 = preset("qwen-3-tiny")
CONFIGS = {
    "llama, scaled positions": LLAMA,
    "llama, plain positions": dataclasses.replace(LLAMA, rope_scaling=None),
    "llama, tied": dataclasses.replace(LLAMA, tied_embeddings=True),
    "llama, heads smaller than their share": dataclasses.replace(LLAMA, head_dim=16),
    "llama, no shared heads": dataclasses.replace(LLAMA, num_kv_heads=LLAMA.num_heads),
    "qwen, tied": QWEN,
    "qwen, a head of its own": dataclasses.replace(QWEN, tied_embeddings=False),
    "qwen 3, tied": QWEN_3,
    "qwen 3, a head of its own": dataclasses.replace(QWEN_3, tied_embeddings=False),
    "mistral, a window shorter than the sequence": MISTRAL,
    "mistral, a window as long as the sequence": dataclasses.replace(MISTRAL, sliding_window=LENGTH),
    "mistral, no window": dataclasses.replace(MISTRAL, sliding_window=None),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_loss_equal_those_of_transformers(config: ModelConfig) -> None:
    ours, theirs = Decoder(config), hugging_face(config)
    for name, parameter in ours.named_parameters():
        fill(name, parameter, seed=3, precision="fp32")
        scatter(name, parameter)
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if config.tied_embeddings else [])
    tokens = torch.randint(0, config.vocab_size, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    with torch.no_grad():
        expected = theirs(ids, labels=labels, shift_labels=labels)
        assert torch.allclose(ours(ids), expected.logits, atol=1e-5, rtol=1e-5)
        assert ours(ids, labels).item() == pytest.approx(expected.loss.item(), abs=1e-5)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_gradients_of_a_step_equal_those_of_transformers(config: ModelConfig) -> None:
    ours, theirs = Decoder(config), hugging_face(config)
    for name, parameter in ours.named_parameters():
        fill(name, parameter, seed=3, precision="fp32")
    theirs.load_state_dict(ours.state_dict(), strict=False)
    tokens = torch.randint(0, config.vocab_size, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    ours(ids, labels).backward()
    theirs(ids, labels=labels, shift_labels=labels).loss.backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[name], atol=1e-5, rtol=1e-4), name


def test_their_weights_load_into_ours_by_name() -> None:
    """The way a published checkpoint comes: tied models name no head of their own."""
    theirs = hugging_face(QWEN)
    weights = {name: value for name, value in theirs.state_dict().items() if name != "lm_head.weight"}
    ours = Decoder(QWEN)
    ours.load_state_dict(weights, strict=True)
    ids = torch.arange(2 * 32).view(2, 32)
    with torch.no_grad():
        assert torch.allclose(ours(ids), theirs(ids).logits, atol=1e-5)


@torch.no_grad()
def scatter(name: str, parameter: torch.Tensor) -> None:
    """First values are too tame to tell a wrong position or a lost bias: make them larger and uneven."""
    generator = torch.Generator().manual_seed(len(name))
    if parameter.dim() == 1:
        parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    else:
        parameter *= 3.0
