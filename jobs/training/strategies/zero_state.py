"""Where DeepSpeed's ZeRO keeps the training state, as flat pieces.

A rank's fp32 masters lie one behind the other in a flat tensor per group, and each of its moments in one
like it. The names used here are DeepSpeed's own and no promise of its: they hold for the pinned version.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from checkpointing.saving.snapshot import Piece
from jobs.training.strategies.state import decoder_parameters, make_moments, moments_of

# Where the optimizers of stage 1 (in bf16 it has one of its own), 2 and 3 keep them.
_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_groups_flat_partition",
    "fp32_partitioned_groups_flat",
)


def masters(engine: Any) -> list[Tensor]:
    """This rank's, one flat tensor per group."""
    found = (getattr(engine.optimizer, name, ()) for name in _MASTERS)
    return [master for of_name in found for master in of_name]


def pieces(engine: Any) -> list[Piece]:
    """Of all parameters and moments, also of those of which this rank has nothing."""
    optimizer = engine.optimizer.optimizer
    make_moments(optimizer, masters(engine))
    return [
        Piece(
            name=f"{kind}/{name}",
            shape=fragment.shape,
            start=fragment.start,
            values=flat.detach().narrow(0, fragment.offset, fragment.length),
        )
        for name, fragment in _fragments(engine)
        for kind, flat in (("param", fragment.master), *moments_of(optimizer, fragment.master))
    ]


def derive_parameters(engine: Any) -> None:
    """What the forward pass reads, from the masters, as at the end of an update. All ranks together."""
    optimizer = engine.optimizer
    if not engine.zero_optimization_partition_weights():
        optimizer.update_lp_params()
        return
    # Lets go of the small parameters, which are kept whole between updates: they are gathered anew.
    optimizer.checkpoint_event_prologue()
    for group in range(len(masters(engine))):
        optimizer._reassign_or_swap_out_partitioned_parameters(group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fragment:
    """``length`` elements of a parameter from ``start`` on lie from ``offset`` on in ``master``."""

    shape: tuple[int, ...]
    start: int
    length: int
    master: Tensor
    offset: int


def _fragments(engine: Any) -> Iterator[tuple[str, _Fragment]]:
    fragment_of = _in_slices if engine.zero_optimization_partition_weights() else _in_a_row
    for name, parameter in decoder_parameters(engine.module):
        yield name, fragment_of(engine, parameter)


def _in_a_row(engine: Any, parameter: Any) -> _Fragment:
    """Stages 1 and 2: the parameters of a group as one long row, cut once per rank."""
    mapping = parameter._hp_mapping
    if mapping is None:
        return _Fragment(shape=tuple(parameter.shape), start=0, length=0, master=masters(engine)[0], offset=0)
    return _Fragment(
        shape=tuple(parameter.shape),
        start=mapping.lp_fragment_address.start,
        length=mapping.lp_fragment_address.numel,
        master=masters(engine)[mapping.param_group_index],
        offset=mapping.hp_fragment_address.start,
    )


def _in_slices(engine: Any, parameter: Any) -> _Fragment:
    """Stage 3: each parameter cut once per rank, into slices of one size, the last ones with padding."""
    group, offset, size = engine.optimizer.grad_position[engine.optimizer.get_param_id(parameter)]
    start = min(dist.get_rank() * size, parameter.ds_numel)
    return _Fragment(
        shape=tuple(parameter.ds_shape),
        start=start,
        length=min(size, parameter.ds_numel - start),
        master=masters(engine)[group],
        offset=offset,
    )
