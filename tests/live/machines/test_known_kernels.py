"""What a device computes of known numbers: the same each time, and otherwise if one bit of it is wrong."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cluster.probe.device import one_thread
from cluster.probe.kernels import known
from cluster.probe.kernels.known import Unsteady, kernel_digests

CPU = torch.device("cpu")
# Where each kernel is looked up.
PLACES: dict[str, tuple[Any, str]] = {
    "product": (Tensor, "__matmul__"),
    "softmax": (functional, "softmax"),
    "norm": (functional, "rms_norm"),
    "silu": (functional, "silu"),
    "attention": (functional, "scaled_dot_product_attention"),
}


def computed() -> dict[str, str]:
    with one_thread(True):
        return {one.kernel: one.digest for one in kernel_digests(CPU)}


def flipped(right: Callable[..., Tensor], is_due: Callable[[], bool]) -> Callable[..., Tensor]:
    def wrong(*given: Any, **named: Any) -> Tensor:
        result = right(*given, **named).contiguous()
        if is_due():
            result.view(torch.uint8).view(-1)[-1:].bitwise_xor_(1)
        return result

    return wrong


@pytest.fixture(scope="module")
def healthy() -> dict[str, str]:
    return computed()


def test_each_kernel_in_each_precision_has_a_digest_of_its_own_and_the_same_each_time(
    healthy: dict[str, str],
) -> None:
    assert computed() == healthy
    assert healthy.keys() == {f"{dtype} {name}" for dtype in ("fp32", "bf16") for name in PLACES}
    assert len({*healthy.values()}) == len(healthy)


@pytest.mark.parametrize("name", PLACES)
def test_one_flipped_bit_of_a_result_makes_another_digest_of_that_kernel_alone(
    name: str, healthy: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute = PLACES[name]
    monkeypatch.setattr(owner, attribute, flipped(getattr(owner, attribute), lambda: True))
    differing = {kernel for kernel, digest in computed().items() if digest != healthy[kernel]}
    assert differing == {f"fp32 {name}", f"bf16 {name}"}


def test_a_device_that_differs_from_itself_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = itertools.cycle([False, True])
    monkeypatch.setattr(functional, "silu", flipped(functional.silu, lambda: next(turns)))
    with pytest.raises(Unsteady, match="fp32 silu differs from one computation to the next"):
        computed()


def test_the_model_of_a_cpu_is_its_processor_with_what_torch_uses_of_it() -> None:
    assert known.model_of(CPU).endswith(torch.backends.cpu.get_cpu_capability())
