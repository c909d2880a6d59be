"""Each strategy's losses on the device beside the same on the CPU; each setting's beside those without it."""

from functools import cache

import pytest

from jobs.training.task.job import Precision, Recipe, Strategy
from jobs.training.task.settings import Attention, Fp8, Settings
from tests.gpu.apart import apart
from tests.gpu.conftest import Say
from tests.gpu.here import CPU, DEVICE
from tests.gpu.trainings import STRATEGIES, Course, documents_in_rows, plain, train_each, with_settings

pytestmark = pytest.mark.gpu

# Losses are between 5 and 7. In fp32 another order of sums moves them by 1e-6 a step; bf16 has 8 bits, and
# kernels round in other places.
BOUNDS: dict[Precision, float] = {"fp32": 1e-4, "bf16": 0.05}
# fp8 has 4 bits, or 3.
FP8_BOUND = 0.3
PLAIN = [plain(strategy, precision) for precision in BOUNDS for strategy in STRATEGIES]
SETTINGS = {
    "selective": Settings(activation_checkpointing="selective"),
    "full": Settings(activation_checkpointing="full"),
    "chunked": Settings(cross_entropy="chunked"),
    "compile": Settings(compile="block"),
    "compile, selective": Settings(compile="block", activation_checkpointing="selective"),
    "compile, full, chunked": Settings(
        compile="block", activation_checkpointing="full", cross_entropy="chunked"
    ),
}
# All of them under ddp, and under the others one of each kind; zero3 can't compile. Compiling takes the time.
CASES: list[tuple[Strategy, Precision, str]] = [
    *(("ddp", precision, name) for precision in BOUNDS for name in SETTINGS),
    *((strategy, "bf16", name) for strategy in ("fsdp", "zero1", "zero3") for name in ("full", "chunked")),
    *((strategy, "bf16", "compile, full, chunked") for strategy in ("fsdp", "zero1")),
]
KERNELS: tuple[Attention, ...] = ("flash", "efficient", "cudnn", "math", "flex")


@cache
def on_the_cpu() -> dict[Recipe, Course]:
    return dict(zip(PLAIN, apart(train_each, PLAIN, device=CPU), strict=True))


@cache
def on_the_device() -> dict[Recipe, Course]:
    return dict(zip(PLAIN, apart(train_each, PLAIN, device=DEVICE), strict=True))


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_of_the_cpu(strategy: Strategy, precision: Precision, seen: Say) -> None:
    recipe = plain(strategy, precision)
    ours, theirs = on_the_device()[recipe], on_the_cpu()[recipe]
    distance, bound = ours.distance(theirs), BOUNDS[precision]
    seen(f"within {distance:.1e} (bound {bound:.0e}); attention: {ours.kernel}")
    assert distance <= bound, f"{ours.losses} on the device, {theirs.losses} on the CPU"


@pytest.mark.parametrize(("strategy", "precision", "name"), CASES)
def test_losses_are_those_without_a_setting(
    strategy: Strategy, precision: Precision, name: str, seen: Say
) -> None:
    ours, bound = _settings(strategy, precision)[name], BOUNDS[precision]
    assert ours.refused is None, ours.refused
    distance = ours.distance(on_the_device()[plain(strategy, precision)])
    seen(f"within {distance:.1e} (bound {bound:.0e})")
    assert distance <= bound, (
        f"{ours.losses}, without it {on_the_device()[plain(strategy, precision)].losses}"
    )


@cache
def _settings(strategy: Strategy, precision: Precision) -> dict[str, Course]:
    names = [name for one, its, name in CASES if (one, its) == (strategy, precision)]
    recipes = [with_settings(plain(strategy, precision), SETTINGS[name]) for name in names]
    return dict(zip(names, apart(train_each, recipes, device=DEVICE), strict=True))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("how", ["tensorwise", "rowwise"])
def test_losses_in_fp8_are_about_those_of_bf16_or_it_is_refused(
    how: Fp8, strategy: Strategy, seen: Say
) -> None:
    ours = _fp8(strategy)[how]
    if ours.refused:
        seen(f"refused: {ours.refused}")
        return
    distance = ours.distance(on_the_device()[plain(strategy, "bf16")])
    seen(f"within {distance:.1e} (bound {FP8_BOUND})")
    assert distance <= FP8_BOUND


@cache
def _fp8(strategy: Strategy) -> dict[Fp8, Course]:
    kinds: tuple[Fp8, ...] = ("tensorwise", "rowwise")
    recipes = [with_settings(plain(strategy, "bf16"), Settings(fp8=how)) for how in kinds]
    return dict(zip(kinds, apart(train_each, recipes, device=DEVICE), strict=True))


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_each_attention_kernel_computes_the_same_or_is_refused(
    kernel: Attention, precision: Precision, seen: Say
) -> None:
    ours, bound = _kernels(precision)[kernel], BOUNDS[precision]
    if ours.refused:
        # Neither flash nor cuDNN computes fp32, and not every build has every kernel; these two always run.
        seen(f"refused: {ours.refused}")
        assert kernel != "math" and (kernel, precision) != ("flash", "bf16")
        return
    assert ours.kernel.startswith(kernel)
    distance = ours.distance(on_the_device()[plain("ddp", precision)])
    seen(f"{ours.kernel}, within {distance:.1e} of auto (bound {bound:.0e})")
    assert distance <= bound


@pytest.mark.parametrize("how", ["flash", "flex"])
def test_documents_that_a_kernel_is_told_of_have_the_losses_of_those_that_a_mask_keeps_apart(
    how: Attention, seen: Say
) -> None:
    (told, kernel), (masked, by_mask) = apart(documents_in_rows, (how, "math"), device=DEVICE)
    if kernel is None:
        seen(f"refused: {told}")
        return
    assert kernel.startswith("flash of variable lengths" if how == "flash" else "flex")
    distance = max(abs(one - its) for one, its in zip(told, masked, strict=True))
    seen(f"{kernel}, within {distance:.1e} of {by_mask} (bound {BOUNDS['bf16']})")
    assert distance <= BOUNDS["bf16"]


@cache
def _kernels(precision: Precision) -> dict[Attention, Course]:
    recipes = [with_settings(plain("ddp", precision), Settings(attention=kernel)) for kernel in KERNELS]
    return dict(zip(KERNELS, apart(train_each, recipes, device=DEVICE), strict=True))
