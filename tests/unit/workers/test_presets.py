"""The counts that FLOP formulas and memory predictions rest on, against what the authors published."""

import pytest

from jobs.training.task.presets import PRESETS, preset

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-1.5b": 1_543_714_304,
    "qwen-2.5-0.5b": 494_032_768,
    "mistral-7b": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_a_published_model_has_its_published_number_of_parameters(name: str, count: int) -> None:
    assert preset(name).num_parameters == count


def test_the_matmul_count_leaves_out_an_input_embedding_of_its_own() -> None:
    llama = preset("llama-3.1-8b")
    assert llama.num_matmul_parameters == llama.num_parameters - 128_256 * 4096 == 7_504_924_672


def test_the_matmul_count_keeps_a_tied_embedding_once() -> None:
    llama = preset("llama-3.2-1b")
    assert llama.tied_embeddings
    assert llama.num_matmul_parameters == llama.num_parameters


@pytest.mark.parametrize(("size", "low", "high"), [("tiny", 500_000, 1_000_000), ("mini", 20e6, 60e6)])
def test_each_family_has_a_model_for_small_machines(size: str, low: int, high: int) -> None:
    small = [config for name, config in PRESETS.items() if name.endswith(f"-{size}")]
    assert {config.family for config in small} == {"llama", "qwen2", "mistral"}
    assert all(low <= config.num_parameters <= high for config in small)
    assert any(config.tied_embeddings for config in small)
    assert any(config.sliding_window is not None for config in small)
    assert all(config.num_kv_heads < config.num_heads for config in small)


def test_a_preset_is_found_under_its_own_name() -> None:
    assert all(preset(name).name == name for name in PRESETS)
