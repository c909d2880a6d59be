"""Deletes generations, and goes on behind what a store refuses to delete: a refusal costs only room.

What is refused is tried again after an hour, behind everything else. Until then it costs no request.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event

from checkpointing.format.manifest import MANIFEST
from checkpointing.stores.contract import Denied, Store, StoreError
from checkpointing.stores.transfers import side_by_side

AGAIN_AFTER_S = 3600.0
# So many failures in a row that are no denials mean that the store is away. Each may have lasted minutes.
_MOST_IN_A_ROW = 2
# A generation has an object for each rank, and of very many, one after the other would take longer than it
# takes until the next save. Up to so many are deleted one after the other.
_FEW, _NUM_THREADS = 64, 16


class DeletionQueue:
    """Generations that wait to be deleted, and why the store refused those that were tried."""

    def __init__(self, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._due_at: dict[str, float] = {}
        self._refused: dict[str, StoreError] = {}

    @property
    def refused(self) -> Mapping[str, StoreError]:
        """The generations that the store did not delete when it was last asked."""
        return dict(self._refused)

    def add(self, generations: Iterable[str]) -> None:
        """Has them deleted. One that waits already keeps its turn."""
        now = self._ticks()
        for name in generations:
            self._due_at.setdefault(name, now)

    def work(self, delete: Callable[[str], None], is_kept: Callable[[str], object]) -> tuple[str, ...]:
        """Calls ``delete`` for each generation that is due, and returns those that it deleted.

        One that ``is_kept`` leaves the queue. Never raises a ``StoreError``. After two failures in a row
        that are no denials, the rest waits for the next call.
        """
        gone, in_a_row = [], 0
        for name in self._due():
            self._due_at.pop(name, None)
            self._refused.pop(name, None)
            if is_kept(name):
                continue
            try:
                delete(name)
            except StoreError as error:
                self._due_at[name] = self._ticks() + AGAIN_AFTER_S
                self._refused[name] = error
                in_a_row = 0 if isinstance(error, Denied) else in_a_row + 1
                if in_a_row == _MOST_IN_A_ROW:
                    break
                continue
            in_a_row = 0
            gone.append(name)
        return tuple(gone)

    def _due(self) -> Sequence[str]:
        now = self._ticks()
        return [name for name, due_at in self._due_at.items() if due_at <= now]


def delete_objects(store: Store, names: Iterable[str]) -> None:
    """Deletes a generation's objects, the manifest first, so that a half deleted one never looks whole.

    An object whose deletion is denied stays, all behind it are deleted, and the first denial is raised at the
    end. A manifest that stays keeps its generation whole. Any other error ends it; of many objects a few that
    are under way are still deleted.
    """
    in_order = sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}"))
    if in_order and in_order[0].endswith(f"/{MANIFEST}"):
        store.delete(in_order.pop(0))
    denials = [one for one in _denials(store, in_order) if one]
    if denials:
        raise denials[0]


def _denials(store: Store, names: Sequence[str]) -> Iterator[Denied | None]:
    """The first denial of each part of ``names``.

    Its threads hold up no process that ends, also where the store does not answer.
    """
    is_over = Event()

    def delete(part: Sequence[str]) -> Denied | None:
        first = None
        for name in part:
            if is_over.is_set():
                break
            try:
                store.delete(name)
            except Denied as error:
                first = first or error
            except BaseException:
                is_over.set()
                raise
        return first

    num_threads = 1 if len(names) <= _FEW else _NUM_THREADS
    size = -(-len(names) // num_threads) or 1
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    try:
        yield from side_by_side(delete, parts, at_once=num_threads)
    finally:
        # The caller may have been interrupted.
        is_over.set()
