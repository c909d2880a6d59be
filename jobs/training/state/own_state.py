"""The state of a training that has no engine: objects by name, such as a model and its optimizer.

Rank 0 saves the tensors that each rank holds whole, and every rank loads them. Of tensors that are cut into
rows each rank saves and loads its own, see ``sharded``. Each rank's random generators are saved beside them,
see ``random_state``.
"""

import json
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from checkpointing.errors import Unfit
from checkpointing.format.manifest import Manifest, TensorInfo
from checkpointing.saving.snapshot import DTYPES, Piece
from jobs.training.state.plain_state import Apart, NoPlainState, put_together, take_apart, tensor_names
from jobs.training.state.sharded import is_first_copy, own_range, sharded_like

_ROOT = "state"
# The key of a generation's description that holds the trees.
OWN = "own"
# Ranks send it to rank 0 with each save, in a message of at most 8 MiB.
_MOST_JSON_BYTES = 2**21


class OwnState:
    """The objects of one rank; see ``saved_run.TrainingState``. All ranks have the same ones.

    An object has ``state_dict`` and ``load_state_dict``, or is a tensor, a ``torch.Generator`` or a dict.
    ``bind`` adds an object later than the restore; its saved state is kept for it until then.
    """

    def __init__(self, objects: Mapping[str, object], rank: int) -> None:
        self._objects = {name: _bare(value) for name, value in objects.items()}
        self._is_rank_0 = rank == 0
        self._landed: dict[str, Tensor] = {}
        # The trees of objects that are not there yet. Their tensors stay landed, and whole.
        self._unbound: dict[str, Any] = {}
        self._infos: Mapping[str, TensorInfo] = {}
        self._apart: dict[str, Apart] = {}

    def pieces(self) -> list[Piece]:
        self._apart = {name: _taken(value, f"{_ROOT}/{name}") for name, value in self._objects.items()}
        return [
            _piece(name, tensor)
            for apart in self._apart.values()
            for name, tensor in apart.tensors.items()
            if (is_first_copy(tensor) if isinstance(tensor, DTensor) else self._is_rank_0)
        ]

    def description(self) -> Mapping[str, Any]:
        """Of the state that ``pieces`` has seen last."""
        trees = {name: apart.tree for name, apart in self._apart.items()}
        for name, tree in trees.items():
            if (num_bytes := len(json.dumps(tree))) > _MOST_JSON_BYTES:
                raise NoPlainState(
                    f"{_ROOT}/{name}: holds {num_bytes:,} bytes beside its tensors, expected at most "
                    f"{_MOST_JSON_BYTES:,}; put long lists into tensors"
                )
        return {OWN: trees}

    def targets(self, manifest: Manifest) -> list[Piece]:
        trees, infos = _trees(manifest), manifest.tensors
        if missing := sorted(self._objects.keys() - trees.keys()):
            known = ", ".join(sorted(trees))
            raise Unfit(f"{_ROOT}/{missing[0]}: the checkpoint {manifest.cut.generation} has only {known}")
        self._landed, self._infos = {}, infos
        pieces: list[Piece] = []
        for name, tree in trees.items():
            wanted = _saved_tensors(tree, f"{_ROOT}/{name}", infos)
            value = self._objects.get(name)
            if value is not None:
                _check(value, f"{_ROOT}/{name}", wanted)
            pieces += [_target(info, cut) for info, cut in _cuts(value, f"{_ROOT}/{name}", wanted)]
        self._landed = {piece.name: piece.values for piece in pieces}
        return pieces

    def restored(self, manifest: Manifest) -> None:
        self._unbound = dict(_trees(manifest))
        for name, value in self._objects.items():
            self._load(name, value)

    def bind(self, name: str, value: object) -> None:
        """Adds ``value``, and loads what was saved under that name, if anything was."""
        self._objects[name] = _bare(value)
        if name in self._unbound:
            self._load(name, self._objects[name])

    def _load(self, name: str, value: object) -> None:
        tree, path = self._unbound.pop(name), f"{_ROOT}/{name}"
        cuts = {info.name: cut for info, cut in _cuts(value, path, _saved_tensors(tree, path, self._infos))}
        state = put_together(
            tree, path, lambda one: _tensor(self._landed.pop(one), self._infos[one], cuts[one])
        )
        _load(value, state, path)

    @property
    def unbound(self) -> list[str]:
        """Names that were loaded and whose object is not there yet."""
        return sorted(self._unbound)

    def device(self) -> torch.device:
        """The device of the first tensor that is on one, else the CPU."""
        tensors = (tensor for apart in self._apart.values() for tensor in apart.tensors.values())
        return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def _bare(value: object) -> object:
    """The module itself, without what was wrapped around it: names stay the same in other set-ups."""
    while True:
        if isinstance(value, DistributedDataParallel):
            value = value.module
        elif isinstance(value, nn.Module) and isinstance(
            inner := getattr(value, "_orig_mod", None), nn.Module
        ):
            value = inner
        else:
            return value


def _piece(name: str, tensor: Tensor) -> Piece:
    start, held = 0, tensor
    if isinstance(tensor, DTensor):
        start, held = own_range(tensor)[0], tensor.to_local()
    return Piece(name=name, shape=tuple(tensor.shape), start=start, values=held.reshape(-1))


def _target(info: TensorInfo, cut: DTensor | None) -> Piece:
    start, length = (0, info.num_elements) if cut is None else own_range(cut)
    return Piece(
        name=info.name, shape=info.shape, start=start, values=torch.empty(length, dtype=DTYPES[info.dtype])
    )


def _tensor(landed: Tensor, info: TensorInfo, cut: DTensor | None) -> Tensor:
    """What has landed, as the tensor that it was."""
    if cut is None:
        return landed.view(info.shape)
    start, length = own_range(cut)
    return sharded_like(cut, landed if landed.numel() == length else landed.narrow(0, start, length))


def _cuts(value: object, path: str, saved: list[TensorInfo]) -> Iterator[tuple[TensorInfo, DTensor | None]]:
    """Each saved tensor with one that is cut as it will be; None if each rank holds it whole.

    An optimizer makes its tensors with the first step, each cut as its parameter is.
    """
    now = {} if value is None else _taken(value, path).tensors
    parameters = _parameters(value) if isinstance(value, Optimizer) else []
    for info in saved:
        before = now.get(info.name)
        if before is None and (number := _parameter_number(info.name, path)) is not None:
            before = parameters[number] if number < len(parameters) else None
        if isinstance(before, DTensor) and tuple(before.shape) == info.shape:
            yield info, before
        else:
            yield info, None


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    """In the order in which its ``state_dict`` counts them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameter_number(name: str, path: str) -> int | None:
    """Of a tensor of an optimizer's state."""
    found = re.match(r"/state/#(\d+)/", name.removeprefix(path))
    return int(found[1]) if found else None


def _taken(value: object, path: str) -> Apart:
    if isinstance(value, nn.Module) and any(
        isinstance(part, FullyShardedDataParallel) for part in value.modules()
    ):
        raise NoPlainState(
            f"{path}: FullyShardedDataParallel can't be saved; use torch.distributed.fsdp.fully_shard, which "
            "does the same"
        )
    if isinstance(value, torch.Generator):
        return take_apart(value.get_state(), path)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return take_apart(value.state_dict(), path)
    if isinstance(value, Tensor | MutableMapping):
        return take_apart(value, path)
    raise NoPlainState(
        f"{path}: a {type(value).__name__} has no state_dict and load_state_dict; expected an object with "
        "both, a tensor, a torch.Generator or a dict"
    )


def _trees(manifest: Manifest) -> dict[str, Any]:
    trees = manifest.cut.state.get(OWN)
    if not isinstance(trees, dict):
        raise Unfit(
            f"{manifest.cut.generation} was saved by `longhaul train`, which alone can resume it; give this "
            "run another name"
        )
    return trees


def _saved_tensors(tree: Any, path: str, infos: Mapping[str, TensorInfo]) -> list[TensorInfo]:
    names = tensor_names(tree, path)
    if lost := [name for name in names if name not in infos]:
        raise Unfit(f"{lost[0]}: is not among the checkpoint's tensors")
    return [infos[name] for name in names]


def _check(value: object, path: str, saved: list[TensorInfo]) -> None:
    """Raises ``Unfit`` if a tensor's shape or type is another one than in the checkpoint.

    Optimizers make their tensors with the first step, so other objects than modules may lack some.
    """
    before = {info.name: info for info in saved}
    now = _taken(value, path).tensors
    for name, tensor in now.items():
        if (info := before.get(name)) is None:
            if isinstance(value, nn.Module):
                raise Unfit(f"{name}: the checkpoint has no such tensor; is it that of another model?")
        elif (tuple(tensor.shape), tensor.dtype) != (info.shape, DTYPES[info.dtype]):
            found = f"{_text(tuple(tensor.shape), tensor.dtype)}"
            raise Unfit(f"{name}: is {found}, but the checkpoint has {_text(info.shape, DTYPES[info.dtype])}")
    if isinstance(value, nn.Module) and (more := [name for name in before if name not in now]):
        raise Unfit(f"{more[0]}: is in the checkpoint, and not in the model; is it that of another model?")


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape)) or 'one number'} of {str(dtype).removeprefix('torch.')}"


@torch.no_grad()
def _load(value: Any, state: Any, path: str) -> None:
    try:
        if isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, Tensor):
            value.copy_(state)
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(state)
        else:
            value.clear()
            value.update(state)
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise Unfit(f"{path}: {type(value).__name__} does not take its saved state: {line}") from error
