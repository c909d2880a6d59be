"""The training state that torch's own optimizer and schedule hold, under any sharding.

Parameters and moments have the decoder's names, which are Hugging Face's. The strategy decides which elements
of each tensor a rank holds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from checkpointing.saving.snapshot import Piece
from jobs.training.models.decoder import Decoder
from jobs.training.strategies.contract import Counters
from jobs.training.strategies.host_adamw import MOMENTS
from jobs.training.strategies.memory import local


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``length`` elements of a parameter, or of a moment, which has the layout of its parameter.

    They are those from ``start`` on of the whole, and those from ``offset`` on of what this rank holds.
    """

    start: int
    offset: int
    length: int

    def share(self, place: int, num_places: int) -> "Part":
        """One of ``num_places`` parts of about one size, which follow one another."""
        first, end = (self.length * number // num_places for number in (place, place + 1))
        return Part(start=self.start + first, offset=self.offset + first, length=end - first)


PartOf = Callable[[Tensor], Part]
"""Says which elements of a parameter this rank saves or loads."""


def pieces(model: nn.Module, optimizer: AdamW, part_of: PartOf) -> list[Piece]:
    """Pieces of all parameters and moments, in an order that is the same on every rank."""
    make_moments(optimizer, model.parameters())
    return [
        _piece(f"{kind}/{name}", parameter, local(tensor.detach()), part_of(parameter))
        for name, parameter in decoder_parameters(model)
        for kind, tensor in (("param", parameter), *moments_of(optimizer, parameter))
    ]


def _piece(name: str, parameter: Tensor, held: Tensor, part: Part) -> Piece:
    values = held.view(-1).narrow(0, part.offset, part.length)
    return Piece(name=name, shape=tuple(parameter.shape), start=part.start, values=values)


def decoder_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The decoder's parameters, tied weights once; names lack the prefixes of modules around the decoder."""
    decoder = next(module for module in model.modules() if isinstance(module, Decoder))
    return decoder.named_parameters()


def moments_of(optimizer: AdamW, parameter: Tensor) -> list[tuple[str, Tensor]]:
    return [(kind, optimizer.state[parameter][kind]) for kind in MOMENTS]


def make_moments(optimizer: AdamW, parameters: Iterable[Tensor]) -> None:
    """Makes the moments that do not exist yet, equal to those that the first update would make."""
    for parameter in parameters:
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{kind: torch.zeros_like(parameter) for kind in MOMENTS},
            }


def counters(schedule: LambdaLR, num_skipped_updates: int) -> Counters:
    """Reads the counters from the schedule, which counts all updates: Adam's own counts are on the device."""
    return Counters(num_updates=schedule.last_epoch, num_skipped_updates=num_skipped_updates)


def restore_counters(optimizer: AdamW, schedule: LambdaLR, counters: Counters) -> None:
    """Sets optimizer and schedule to ``counters.num_updates`` updates, whatever they did before."""
    for state in optimizer.state.values():
        state["step"].fill_(counters.num_updates)
    _move(schedule, counters.num_updates)


def _move(schedule: LambdaLR, position: int) -> None:
    factors = [factor(position) for factor in schedule.lr_lambdas]
    rates = [base * factor for base, factor in zip(schedule.base_lrs, factors, strict=True)]
    schedule.load_state_dict({**schedule.state_dict(), "last_epoch": position, "_last_lr": rates})
    # ``load_state_dict`` does not set the optimizer's own rates.
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
