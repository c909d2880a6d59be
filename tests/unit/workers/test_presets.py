"""The counts that FLOP formulas and memory predictions rest on, against what the authors published."""

import pytest

from jobs.training.task.presets import PRESETS, preset

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-14b": 14_770_033_664,
    "qwen-2.5-32b": 32_763_876_352,
    "qwen-2.5-72b": 72_706_203_648,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-1.7b": 1_720_574_976,
    "qwen-3-4b": 4_022_468_096,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-14b": 14_768_307_200,
    "qwen-3-32b": 32_762_123_264,
    "mistral-small-24b": 23_572_403_200,
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
    assert {config.family for config in small} == {"llama", "qwen2", "qwen3", "mistral"}
    assert all(low <= config.num_parameters <= high for config in small)
    assert any(config.tied_embeddings for config in small)
    assert any(config.sliding_window is not None for config in small)
    assert all(config.num_kv_heads < config.num_heads for config in small)


def test_a_preset_is_found_under_its_own_name() -> None:
    assert all(preset(name).name == name for name in PRESETS)
