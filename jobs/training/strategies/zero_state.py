"""Finds the training state inside DeepSpeed's ZeRO, as flat pieces.

A rank's fp32 masters lie one behind the other in one flat tensor per parameter group. Each kind of moment has
a flat tensor of the same layout. The attribute names used here are DeepSpeed's internals, so they are certain
only for the pinned version.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from checkpointing.saving.snapshot import Piece
from jobs.training.strategies.state import decoder_parameters, make_moments, moments_of

# Attributes in which DeepSpeed's optimizers keep masters: stage 1 (another one in bf16), stages 2 and 3.
_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_groups_flat_partition",
    "fp32_partitioned_groups_flat",
)


def masters(engine: Any) -> list[Tensor]:
    """This rank's masters, one flat tensor per parameter group."""
    found = (getattr(engine.optimizer, name, ()) for name in _MASTERS)
    return [master for of_name in found for master in of_name]


def pieces(engine: Any) -> list[Piece]:
    """Pieces of all parameters and moments; a piece is empty if this rank holds nothing of its tensor."""
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
    """Sets the forward pass's parameters from the masters, as at the end of an update. Collective."""
    optimizer = engine.optimizer
    if not engine.zero_optimization_partition_weights():
        optimizer.update_lp_params()
        return
    # Releases the small parameters, which are kept whole between updates, so that they are gathered again.
    optimizer.checkpoint_event_prologue()
    for group in range(len(masters(engine))):
        optimizer._reassign_or_swap_out_partitioned_parameters(group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fragment:
    """``length`` elements of a parameter, from ``start`` on, lie in ``master`` from ``offset`` on."""

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
    """Stages 1 and 2: the parameters of a group are one long row, cut into one part per rank."""
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
    """Stage 3: each parameter is cut into one slice per rank, all of one size; the last slices are padded."""
    group, offset, size = engine.optimizer.grad_position[engine.optimizer.get_param_id(parameter)]
    start = min(dist.get_rank() * size, parameter.ds_numel)
    return _Fragment(
        shape=tuple(parameter.ds_shape),
        start=start,
        length=min(size, parameter.ds_numel - start),
        master=masters(engine)[group],
        offset=offset,
    )
