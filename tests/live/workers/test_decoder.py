"""The decoder by itself: its parameters, its state, its first values, and each way it gets wrapped."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.training.models.decoder import Decoder
from jobs.training.models.first_calls import call_each_once
from jobs.training.models.init import fill, materialize
from jobs.training.task.job import Precision
from jobs.training.task.presets import PRESETS, ModelConfig, preset

TINY = ("llama-tiny", "qwen-tiny", "qwen-3-tiny", "mistral-tiny")
CPU = torch.device("cpu")


def on_meta(config: ModelConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(config)


def started(config: ModelConfig, *, seed: int = 0, precision: Precision = "fp32") -> Decoder:
    decoder = on_meta(config)
    materialize(decoder, CPU, seed=seed, precision=precision)
    return decoder


def batch(config: ModelConfig, *, length: int = 48, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab_size, (2, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@pytest.mark.parametrize("name", PRESETS)
def test_a_decoder_on_meta_has_as_many_parameters_as_its_preset_says(name: str) -> None:
    decoder = on_meta(preset(name))
    parameters = list(decoder.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    assert sum(parameter.numel() for parameter in parameters) == preset(name).num_parameters


@pytest.mark.parametrize("name", TINY)
def test_nothing_but_parameters_is_state_even_after_a_forward(name: str) -> None:
    decoder = started(preset(name))
    decoder(*batch(preset(name)))
    assert set(decoder.state_dict()) == {name for name, _ in decoder.named_parameters()}
    assert not list(decoder.buffers())


@pytest.mark.parametrize("name", TINY)
def test_a_token_never_sees_what_follows_it(name: str) -> None:
    decoder = started(preset(name))
    ids, _ = batch(preset(name))
    changed = ids.clone()
    changed[:, 30:] = (changed[:, 30:] + 1) % preset(name).vocab_size
    before, after = decoder(ids), decoder(changed)
    assert torch.allclose(before[:, :30], after[:, :30], atol=1e-6)
    assert not torch.allclose(before[:, 30], after[:, 30], atol=1e-6)


def test_lengths_may_change_from_batch_to_batch() -> None:
    config = preset("mistral-tiny")
    decoder = started(config)
    short, long = batch(config, length=16), batch(config, length=64)
    first = decoder(*short)
    decoder(*long)
    assert torch.equal(decoder(*short), first)


@pytest.mark.parametrize("name", TINY)
def test_bf16_parameters_can_be_lent_for_one_call(name: str) -> None:
    decoder = started(preset(name), precision="bf16")
    lent = {key: parameter.bfloat16() for key, parameter in decoder.named_parameters()}
    loss = torch.func.functional_call(decoder, lent, batch(preset(name)))
    loss.backward()
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(decoder(*batch(preset(name))).item(), abs=0.01)
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_far_positions_stay_apart_in_bf16() -> None:
    """bf16 counts exactly to 256 only: angles computed in it would make places 400 and 401 one."""
    config = preset("llama-tiny")
    decoder = started(config, precision="bf16").bfloat16()
    decoder(torch.zeros(1, 512, dtype=torch.long))
    assert decoder.model.positions is not None
    cos, sin = decoder.model.positions.rotation
    assert cos.dtype is torch.bfloat16
    assert abs(sin[401, 0].item() - torch.tensor(401.0).sin().item()) < 0.01
    assert abs(cos[400, 0].item() - torch.tensor(400.0).cos().item()) < 0.01


def test_first_values_do_not_depend_on_the_order_of_filling() -> None:
    forwards, backwards = started(preset("qwen-tiny")), on_meta(preset("qwen-tiny"))
    backwards.to_empty(device=CPU)
    for name, parameter in reversed(list(backwards.named_parameters())):
        fill(name, parameter, seed=0, precision="fp32")
    for name, value in forwards.state_dict().items():
        assert torch.equal(value, backwards.state_dict()[name]), name


def test_first_values_differ_by_name_and_by_seed() -> None:
    one, other, reseeded = (torch.empty(64, 64) for _ in range(3))
    fill("model.layers.0.mlp.up_proj.weight", one, seed=0, precision="fp32")
    fill("model.layers.1.mlp.up_proj.weight", other, seed=0, precision="fp32")
    fill("model.layers.0.mlp.up_proj.weight", reseeded, seed=1, precision="fp32")
    assert not torch.equal(one, other)
    assert not torch.equal(one, reseeded)
    assert one.std().item() == pytest.approx(0.02, rel=0.05)


def test_norms_start_at_one_and_biases_at_zero() -> None:
    for name, value in started(preset("qwen-tiny")).state_dict().items():
        if name.endswith(".bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert value.eq(1).all(), name
        else:
            assert value.std() > 0.01, name


def test_in_bf16_every_master_starts_at_a_value_that_bf16_can_hold() -> None:
    for name, value in started(preset("llama-tiny"), precision="bf16").state_dict().items():
        assert value.dtype is torch.float32
        assert torch.equal(value, value.bfloat16().float()), name
    low = torch.empty(64, 64, dtype=torch.bfloat16)
    high = torch.empty(64, 64)
    fill("some.weight", low, seed=0, precision="bf16")
    fill("some.weight", high, seed=0, precision="bf16")
    assert torch.equal(low.float(), high)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one, on gloo."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_wrapping_changes_neither_loss_nor_gradients(name: str, wrapper: str) -> None:
    plain = started(preset(name))
    wrapped = copy.deepcopy(plain)
    inputs = batch(preset(name))
    called = DistributedDataParallel(wrapped) if wrapper == "ddp" else shard(wrapped)
    plain_loss, wrapped_loss = plain(*inputs), called(*inputs)
    plain_loss.backward()
    wrapped_loss.backward()
    assert torch.equal(plain_loss, wrapped_loss)
    wrapped_gradients = {key: whole(value.grad) for key, value in wrapped.named_parameters()}
    for key, parameter in plain.named_parameters():
        assert torch.allclose(whole(parameter.grad), wrapped_gradients[key], atol=1e-7), key


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", TINY)
def test_sharded_mixed_precision_computes_what_lent_bf16_parameters_do(name: str) -> None:
    decoder = started(preset(name), precision="bf16")
    inputs = batch(preset(name))
    lent = {key: parameter.bfloat16() for key, parameter in decoder.named_parameters()}
    expected = torch.func.functional_call(decoder, lent, inputs)
    sharded = shard(decoder, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    assert torch.equal(sharded(*inputs), expected)


def shard(decoder: Decoder, policy: MixedPrecisionPolicy | None = None) -> Decoder:
    mesh = init_device_mesh("cpu", (1,))
    for module in (*decoder.model.layers, decoder):
        fully_shard(module, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return decoder


def whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


class FirstCalls(TorchDispatchMode):
    """How many numbers the first call of each operation computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's base class
        self.sizes: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.sizes.setdefault(func.__name__.partition(".")[0], found.numel())
        return found


def test_no_function_is_computed_by_several_threads_before_one_has_computed_it() -> None:
    call_each_once.cache_clear()
    with (calls := FirstCalls()):
        model = Decoder(preset("llama-tiny"))
        materialize(model, CPU, seed=1, precision="fp32")
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(1, 96, dtype=torch.int64)
        model(ids, ids).backward()
        optimizer.step()
    of_mkl = {"cos", "erf", "exp", "expm1", "log", "log1p", "sin", "sqrt", "tan", "tanh"}
    used = {name: size for name, size in calls.sizes.items() if name in of_mkl}
    assert {"cos", "sin", "sqrt"} <= used.keys()
    assert set(used.values()) == {1}
