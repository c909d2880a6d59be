"""Says which values of a spec exclude each other, for runs and for the cells of a sweep. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from jobs.training.task.job import FP8_MULTIPLE, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A value that can't go with another one. ``reason`` says what was found and what was expected."""

    key: str
    reason: str


def impossible(recipe: Recipe, world_sizes: Sequence[int] = ()) -> list[Impossible]:
    """What is wrong with a recipe whose values are all right by themselves; empty if it can be trained.

    ``world_sizes`` are all at which it is trained, by default its own.
    """
    reasons = [(key, check(recipe)) for key, check in _CHECKS]
    reasons.append(("shard_within", _cannot_shard(recipe, world_sizes or (recipe.world_size,))))
    return [Impossible(key=key, reason=reason) for key, reason in reasons if reason]


def _too_long(recipe: Recipe) -> str | None:
    longest = recipe.model.max_seq_len
    if recipe.seq_len <= longest:
        return None
    return (
        f"{recipe.seq_len} is longer than {recipe.model.name}'s {longest} positions; expected a shorter one"
    )


def _cannot_compile(recipe: Recipe) -> str | None:
    if recipe.compile == "none" or recipe.strategy != "zero3":
        return None
    return "block can't be had under zero3, which gathers weights inside of blocks; expected none, or fsdp"


def _needs_bf16(recipe: Recipe) -> str | None:
    if recipe.fp8 == "none" or recipe.precision == "bf16":
        return None
    return (
        f"{recipe.fp8} can't be had in {recipe.precision}, since fp8 products give bf16; "
        "expected precision: bf16"
    )


def _has_no_fp8(recipe: Recipe) -> str | None:
    if recipe.fp8 == "none" or recipe.strategy in ("ddp", "fsdp"):
        return None
    return (
        f"{recipe.fp8} can't be had under {recipe.strategy}: torchao's fp8 is not made for the weights that "
        "DeepSpeed handles; expected none, or ddp or fsdp"
    )


def _does_not_divide(recipe: Recipe) -> str | None:
    """Every matrix has tokens or one of these sizes as its rows or columns, forward or backward."""
    if recipe.fp8 == "none":
        return None
    model, tokens = recipe.model, recipe.micro_batch * recipe.seq_len
    sizes = {
        f"{model.name}'s hidden_size": model.hidden_size,
        f"{model.name}'s intermediate_size": model.intermediate_size,
        f"{model.name}'s num_heads x head_dim": model.attention_size,
        f"{model.name}'s num_kv_heads x head_dim": model.kv_size,
        "micro_batch x seq_len": tokens,
    }
    odd = [f"{name} is {size}" for name, size in sizes.items() if size % FP8_MULTIPLE]
    if not odd:
        return None
    return f"{recipe.fp8} takes sizes in multiples of {FP8_MULTIPLE}, but {', '.join(odd)}; expected none"


def _cannot_shard(recipe: Recipe, world_sizes: Sequence[int]) -> str | None:
    within = recipe.shard_within
    if within is None:
        return None
    if recipe.strategy != "fsdp":
        return f"{within} can't be had under {recipe.strategy}; expected null, or fsdp"
    wrong = next((size for size in world_sizes if size % within), None)
    if wrong is None:
        return None
    common = gcd(*world_sizes)
    would_do = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
    return f"{within} does not divide {wrong} ranks; expected null for all ranks, or one of {would_do}"


def _cannot_offload(recipe: Recipe) -> str | None:
    if recipe.offload == "none" or recipe.strategy in ("fsdp", "zero3"):
        return None
    return f"{recipe.offload} can't be had under {recipe.strategy}; expected none, or fsdp or zero3"


def _cannot_repeat(recipe: Recipe) -> str | None:
    if not recipe.deterministic or recipe.attention != "cudnn":
        return None
    return (
        "cudnn can't be had with deterministic: true, where torch refuses that kernel; "
        "expected auto, or another kernel"
    )


_CHECKS: tuple[tuple[str, Callable[[Recipe], str | None]], ...] = (
    ("seq_len", _too_long),
    ("compile", _cannot_compile),
    ("fp8", _needs_bf16),
    ("fp8", _has_no_fp8),
    ("fp8", _does_not_divide),
    ("offload", _cannot_offload),
    ("attention", _cannot_repeat),
)
