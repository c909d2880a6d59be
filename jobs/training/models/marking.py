"""Tells somebody when the forward pass is launched, and when the backward pass has come to the embedding.

Between the two lie almost all kernels of a micro-batch. Ranks that wait for a peer's gradients have launched
and done both, where the peer's own device has not: so its place is told apart from theirs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_MARK: ContextVar[Callable[[], None] | None] = ContextVar("mark", default=None)


@contextmanager
def marking(mark: Callable[[], None]) -> Iterator[None]:
    """While it lasts, ``mark`` is called at these places, on the stream of the model. It must not wait."""
    token = _MARK.set(mark)
    try:
        yield
    finally:
        _MARK.reset(token)


def mark_forward() -> None:
    """Called by a model once its loss is launched."""
    if (mark := _MARK.get()) is not None:
        mark()


def mark_backward(vectors: Tensor) -> None:
    """Called by a model with what its blocks start from: their gradient comes last."""
    mark = _MARK.get()
    if mark is not None and vectors.requires_grad:
        # A backward pass runs in a thread of its own, which does not have this variable.
        vectors.register_hook(lambda _: mark())
