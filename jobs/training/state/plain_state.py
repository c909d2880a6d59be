"""Takes a state apart into tensors and JSON, and puts it together again. Nothing is pickled.

A state is a nest of dicts, lists, tuples, numbers, texts, None and tensors, as ``state_dict`` gives it. Its
JSON has a mark where a tensor was; the tensor's name is its path. Anything else is refused with its path.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from checkpointing.errors import Unfit
from checkpointing.saving.snapshot import DTYPES
from jobs.training.state.sharded import is_by_rows

_MOST_DEPTH = 64
# Python itself refuses to read longer numbers from a text.
_MOST_BITS = 2**13
_TENSOR, _TUPLE, _DICT, _FLOAT = "tensor", "tuple", "dict", "float"
_EXPECTED = "expected tensors, numbers, texts, None, lists, tuples and dicts"


class NoPlainState(Exception):
    """A part of the state can't be saved; the text is one line with its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A state in its two parts. ``tensors`` are by name, in the order of the state."""

    tree: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)


def take_apart(state: object, name: str) -> Apart:
    """Takes ``state`` apart; all names begin with ``name``. Raises ``NoPlainState``."""
    tensors: dict[str, Tensor] = {}
    return Apart(tree=_tree(state, name, tensors, 0), tensors=tensors)


def put_together(tree: Any, name: str, tensors: Callable[[str], Tensor]) -> Any:
    """The state again. ``tensors`` gives each by its name. Raises ``Unfit`` if ``tree`` is none of ours."""
    return _state(tree, name, tensors, 0)


def tensor_names(tree: Any, name: str) -> list[str]:
    """The names of all tensors of a tree, in its order."""
    names: list[str] = []

    def note(tensor: str) -> Tensor:
        names.append(tensor)
        return torch.empty(0)

    put_together(tree, name, note)
    return names


def _tree(value: object, path: str, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise NoPlainState(f"{path}: is nested more than {_MOST_DEPTH} deep, or holds itself")
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return _number(value, path)
    if isinstance(value, Tensor):
        tensors[path] = _checked(value, path)
        return {_TENSOR: None}
    if isinstance(value, Mapping):
        pairs = [(_key(key, path), item) for key, item in value.items()]
        return {_DICT: [[key, _tree(item, _below(path, key), tensors, depth + 1)] for key, item in pairs]}
    if type(value) in (list, tuple, torch.Size):
        assert isinstance(value, list | tuple)
        items = [_tree(item, _below(path, index), tensors, depth + 1) for index, item in enumerate(value)]
        return items if type(value) is list else {_TUPLE: items}
    raise NoPlainState(f"{path}: a {type(value).__name__} can't be saved; {_EXPECTED}")


def _number(value: float, path: str) -> Any:
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise NoPlainState(
                f"{path}: a number of {value.bit_length()} bits; expected at most {_MOST_BITS}"
            )
        return bool(value) if isinstance(value, bool) else int(value)
    return float(value) if isfinite(value) else {_FLOAT: repr(float(value))}


def _key(key: object, path: str) -> str | int:
    if type(key) in (str, int):
        assert isinstance(key, str | int)
        return key
    raise NoPlainState(f"{path}: the key {key!r:.80} is a {type(key).__name__}; expected texts and numbers")


def _below(path: str, key: str | int) -> str:
    """A path that no other key leads to: numbers begin with ``#``, and texts are quoted."""
    return f"{path}/#{key}" if isinstance(key, int) else f"{path}/{quote(key, safe='._-')}"


def _checked(tensor: Tensor, path: str) -> Tensor:
    if isinstance(tensor, DTensor) and not is_by_rows(tensor):
        cuts = ", ".join(map(str, tensor.placements))
        raise NoPlainState(
            f"{path}: is cut over ranks as {cuts}; expected tensors that are whole, or cut into rows as by "
            "fully_shard"
        )
    is_plain = tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_quantized
    if not is_plain or tensor.dtype not in DTYPES.values():
        kind = f"{tensor.layout}, {tensor.dtype} on {tensor.device.type}".replace("torch.", "")
        raise NoPlainState(f"{path}: a tensor of {kind} can't be saved; expected one of {', '.join(DTYPES)}")
    return tensor.detach()


def _state(tree: Any, path: str, tensors: Callable[[str], Tensor], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise Unfit(f"{path}: is nested more than {_MOST_DEPTH} deep")
    match tree:
        case None | bool() | int() | float() | str():
            return tree
        case list():
            return list(_items(tree, path, tensors, depth))
        case {"tuple": list(items)}:
            return tuple(_items(items, path, tensors, depth))
        case {"tensor": None}:
            return tensors(path)
        case {"float": "nan" | "inf" | "-inf" as text}:
            return float(text)
        case {"dict": list(pairs)} if all(map(_is_pair, pairs)):
            return {key: _state(item, _below(path, key), tensors, depth + 1) for key, item in pairs}
        case _:
            raise Unfit(f"{path}: what is saved there can't be read by this version")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)


def _items(items: list[Any], path: str, tensors: Callable[[str], Tensor], depth: int) -> Iterator[Any]:
    for index, item in enumerate(items):
        yield _state(item, _below(path, index), tensors, depth + 1)
