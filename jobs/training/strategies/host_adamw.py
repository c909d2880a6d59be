"""An AdamW whose moments live in host memory, for ``offload: optimizer`` under fsdp.

FSDP2's own ``CPUOffloadPolicy`` moves parameters and gradients to the host too: every gather then waits for a
copy, each micro-batch's gradients are added up by the host's cores, and norms need a second backend for
collectives. Here only the moments move, and the device still does the arithmetic.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW
from torch.optim.adamw import adamw

from checkpointing.saving.snapshot import host_memory
from cluster.probe import door
from jobs.training.strategies.memory import local

MOMENTS = ("exp_avg", "exp_avg_sq")


class HostAdamW(AdamW):
    """A fused AdamW. One parameter's moments at a time go to its device, are updated there, and come back.

    An update is equal to AdamW's to the bit. Moments exist from the start, as plain tensors with this rank's
    elements. They are those of the update as soon as ``step`` returns.
    """

    def __init__(self, parameters: Iterable[Parameter], **config: Any) -> None:
        super().__init__(parameters, fused=True, **config)
        for parameter in self._parameters():
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{kind: _on_host(local(parameter)) for kind in MOMENTS},
            }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # returns no loss
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(local(parameter), local(parameter.grad), self.state[parameter], group)
        for device in {parameter.device for parameter in self._parameters()}:
            if device.type != "cpu":
                # A save reads host memory without asking the device.
                door.event(device).synchronize()

    def _parameters(self) -> list[Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _on_host(values: Tensor) -> Tensor:
    """Zeros like ``values`` in host memory, which a device can read and write without a copy in between."""
    memory = host_memory(values.nbytes, values.device)
    return memory.view(values.dtype).view(values.shape)


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Nothing here waits for the device: all is in the order of its stream."""
    moments = {kind: state[kind].to(parameter.device, non_blocking=True, copy=True) for kind in MOMENTS}
    beta1, beta2 = group["betas"]
    adamw(
        [parameter],
        [gradient],
        [moments["exp_avg"]],
        [moments["exp_avg_sq"]],
        [],
        [state["step"]],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    for kind in MOMENTS:
        state[kind].copy_(moments[kind], non_blocking=True)
