"""The optimizer, its schedule and its clipping, the same under every strategy."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from jobs.training.strategies.host_adamw import HostAdamW
from jobs.training.task.job import OptimizerConfig
from jobs.training.task.schedules import lr_factor


def adamw(parameters: Iterable[Parameter], config: OptimizerConfig) -> AdamW:
    """A fused AdamW, on the CPU too: fused is fastest there and needs no extra memory of the model's size."""
    return AdamW(parameters, fused=True, **_hyperparameters(config))


def host_adamw(parameters: Iterable[Parameter], config: OptimizerConfig) -> AdamW:
    """The same, with its moments in host memory."""
    return HostAdamW(parameters, **_hyperparameters(config))


def _hyperparameters(config: OptimizerConfig) -> dict[str, Any]:
    return {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }


def schedule(optimizer: AdamW, config: OptimizerConfig) -> LambdaLR:
    return LambdaLR(optimizer, lambda num_updates: lr_factor(num_updates, config))


def clip(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
    """Scales the gradients down to ``max_norm`` if needed; returns their norm over all ranks before that."""
    parameters = list(parameters)
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if isinstance(norm, DTensor):
        # Reduced here once: else each multiplication with a gradient would wait for a reduction of its own.
        norm = norm.full_tensor()
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
