"""Reads a long run's samples: each once per epoch, at any world size, synthetic or from token shards."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.stores.opening import open_store
from cluster.probe import door
from jobs.training.data.conversations import num_labels, unpack
from jobs.training.data.documents import num_followed, unpack_documents
from jobs.training.data.mixed_source import BesideHeldOut, MixedSource
from jobs.training.data.prefetch_pool import PrefetchPool
from jobs.training.data.sample_source import SampleSource
from jobs.training.data.shard_cache import ShardCache, folder_conflict
from jobs.training.data.shard_check import CheckedShards
from jobs.training.data.shard_ledger import LedgerWriter
from jobs.training.data.shards import Copyable, Readable, Shards
from jobs.training.data.synthetic import Batch, sample
from jobs.training.task.context import Context
from jobs.training.task.sample_order import NEWEST_ORDER, SampleOrder, samples_at, share_of_rank
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import ShardCacheLimits, Task, Tokens
from jobs.training.task.token_index import ID_MASK, DataError

# A sample from object storage takes tens of milliseconds, most of them waiting.
_NUM_READERS = 16
# This one, the two behind it, and the one before.
_STEPS_AT_HAND = 4
_FEWEST_READERS = 2  # of each source, where there are many
# Samples of a step that take longer together are read side by side, as from a network file system.
_NEAR_S = 0.02
_Ids = NDArray[numpy.unsignedinteger]


class Source(Readable, Protocol):
    """Shards that are compared with their digests while they are read."""

    def confirm(self) -> None:
        """Raises ``DataError`` if one was found to be wrong."""

    def wait(self, timeout_s: float) -> bool:
        """Whether a step may begin; false while shards are compared that are few enough to wait for."""


class Samples:
    """One rank's share of each global batch. ``order``, and of a mixture ``stretches``, say which samples."""

    def __init__(
        self,
        task: Task,
        context: Context,
        order: SampleOrder = NEWEST_ORDER,
        stretches: RecordedStretches = (),
    ) -> None:
        self._task = task
        self._order = order
        self._rank = context.rank
        self._device = context.device
        # All sources of a mixture are alike in this.
        first = next(iter(task.places), None)
        self._are_chat = first is not None and first.index.chat is not None
        self._end_id = first.end_id if first else None
        _check_folders(task)
        # One thread for all sources, whose memory and caches stay warm.
        near_reader = PrefetchPool(1)
        read = [_token_source(task, tokens, context, near_reader) for tokens in task.places]
        self._mixed = MixedSource(task.mixture, read, stretches) if task.mixture else None
        source: SampleSource = self._mixed or (read[0] if read else SyntheticSource(task))
        held_out = task.held_out and _token_source(task, task.held_out, context, near_reader)
        self._known: dict[int, list[int]] = {}
        self._source = BesideHeldOut(source, task.num_samples, held_out) if held_out else source

    @property
    def has_unlabelled(self) -> bool:
        """Whether there are tokens in the rows after which nothing is learnt."""
        return self._are_chat or self._end_id is not None

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of a mixture."""
        return tuple(one.name for one in self._task.mixture.sources) if self._task.mixture else ()

    def by_source(self, position: int, of_rows: Sequence[Tensor]) -> Tensor:
        """Sums ``of_rows``, a tensor for each micro-batch of the step that begins after ``position`` samples,
        by the sources of the rows. Nobody waits for the device.
        """
        assert self._mixed is not None
        sources = torch.tensor([self._mixed.source_of(number) for number in self._numbers(position)])
        is_of = self._copied(sources == torch.arange(len(self.sources)).unsqueeze(1))
        # No product of matrices: those may be computed in TF32.
        return (is_of.unsqueeze(2) * torch.cat(list(of_rows))).sum(dim=1)

    def rows(self, position: int) -> list[Tensor]:
        """The micro-batches, on the host, of the step that begins after ``position`` samples."""
        recipe = self._task.recipe
        rows = self._source.read(self._numbers(position))
        # Two steps ahead, so that a late sample is known before the step in between begins.
        self._source.expect(
            [self._numbers(position + number * recipe.sequences_per_step) for number in (1, 2)]
        )
        return list(rows.split(recipe.micro_batch))

    def wait(self, position: int, timeout_s: float = 0.0) -> bool:
        """Whether ``rows`` could return at once, now or within ``timeout_s``."""
        return self.wait_for(self._numbers(position), timeout_s)

    def wait_for(self, numbers: Sequence[int], timeout_s: float) -> bool:
        """As ``wait``, for ``batch`` with these ``numbers``."""
        return self._source.wait(numbers, timeout_s)

    def on_device(self, rows: list[Tensor]) -> list[Batch]:
        """Copies micro-batches to the device. Nobody waits for the copies but what reads them there."""
        on_device = [self._copied(tokens) for tokens in rows]
        if self._are_chat:
            return [unpack(tokens) for tokens in on_device]
        if self._end_id is not None:
            return [unpack_documents(tokens, self._end_id) for tokens in on_device]
        return [(tokens[:, :-1], tokens[:, 1:]) for tokens in on_device]

    def _copied(self, tokens: Tensor) -> Tensor:
        if self._device.type == "cpu":
            return tokens
        # From memory that is not pinned, the copy would wait until the device has done its earlier work.
        return door.pinned(tokens, self._device).to(self._device, non_blocking=True)

    def num_trained(self, rows: list[Tensor]) -> int:
        """How many tokens this rank learns from these micro-batches, which are on the host."""
        if self._are_chat:
            return sum(map(num_labels, rows))
        if self._end_id is not None:
            return sum(num_followed(tokens, self._end_id) for tokens in rows)
        return len(rows) * self._task.recipe.micro_batch * self._task.recipe.seq_len

    def held_out(self) -> Iterator[range]:
        """The sample numbers of this rank's held-out micro-batches, which follow the samples to train on."""
        recipe, first = self._task.recipe, self._task.num_samples
        per_pass = recipe.world_size * recipe.micro_batch
        for number in range(first, first + self._task.eval_samples - per_pass + 1, per_pass):
            start = number + self._rank * recipe.micro_batch
            yield range(start, start + recipe.micro_batch)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Reads one micro-batch and copies it to the device."""
        [batch] = self.on_device([self.read(numbers)])
        return batch

    def read(self, numbers: Sequence[int]) -> Tensor:
        """Reads one micro-batch on the host."""
        return self._source.read(numbers)

    def numbers_at(self, positions: Sequence[int]) -> list[int]:
        """The numbers of the samples at these positions of the run."""
        recipe, num_samples = self._task.recipe, self._task.num_samples
        if self._mixed:
            return [self._mixed.number_at(place, seed=recipe.seed, order=self._order) for place in positions]
        return samples_at(positions, num_samples=num_samples, seed=recipe.seed, order=self._order)

    def _numbers(self, position: int) -> list[int]:
        """Each step's numbers are asked for several times: when it is expected, waited for and read."""
        if position not in self._known:
            self._known[position] = self._computed(position)
            if len(self._known) > _STEPS_AT_HAND:
                del self._known[next(iter(self._known))]
        return self._known[position]

    def _computed(self, position: int) -> list[int]:
        recipe = self._task.recipe
        shares = share_of_rank(
            position,
            rank=self._rank,
            world_size=recipe.world_size,
            micro_batch=recipe.micro_batch,
            grad_accum=recipe.grad_accum,
        )
        return self.numbers_at([place for share in shares for place in share])


class SyntheticSource:
    def __init__(self, task: Task) -> None:
        self._recipe = task.recipe

    def read(self, numbers: Sequence[int]) -> Tensor:
        return torch.stack([sample(self._recipe, number) for number in numbers])

    def expect(self, steps: Sequence[Sequence[int]]) -> None:
        """Does nothing: a synthetic sample takes almost no time to make."""

    def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Samples that are read together, a row each. Those in ``alone`` are still being read, by their rows."""

    rows: Tensor
    alone: Mapping[int, Future[Tensor]]

    def finished(self) -> Tensor:
        for place, row in self.alone.items():
            self.rows[place] = row.result()
        return self.rows

    def cancel(self) -> None:
        for row in self.alone.values():
            row.cancel()


class TokenSource:
    """Reads expected samples while the step before is computed. Ids are checked when they are read."""

    def __init__(
        self,
        tokens: Tokens,
        vocab_size: int,
        sources: Sequence[Source],
        *,
        near_reader: PrefetchPool,
        num_readers: int = _NUM_READERS,
    ) -> None:
        self._sources = sources
        self._shards = Shards(self._sources[0], tokens.index)
        self._windows = tokens.windows
        self._dtype = numpy.dtype(tokens.index.dtype).newbyteorder("<")
        self._vocab_size = vocab_size
        self._id_mask = numpy.uint32(ID_MASK) if tokens.index.chat else None
        self._near_reader = near_reader
        self._readers = PrefetchPool(num_readers)
        # What is read ahead, by the samples that are read together.
        self._ahead: dict[tuple[int, ...], Future[_Batch]] = {}

    def read(self, numbers: Sequence[int]) -> Tensor:
        for source in self._sources:
            source.confirm()
        self._begin(numbers)
        return self._ahead.pop(tuple(numbers)).result().finished()

    def expect(self, steps: Sequence[Sequence[int]]) -> None:
        for numbers in self._ahead.keys() - set(map(tuple, steps)):
            future = self._ahead.pop(numbers)
            # The reason why nobody's samples can't be read is nobody's.
            if not future.cancel() and future.done() and not future.exception():
                future.result().cancel()
        for step in steps:
            self._begin(step)

    def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
        """A sample that can't be read counts as there too: ``read`` then raises the reason."""
        if numbers:
            self._begin(numbers)
        end_s = time.monotonic() + timeout_s
        if not all(source.wait(timeout_s) for source in self._sources):
            return False
        if not numbers:  # of a source of a mixture that has no sample in this step
            return True
        batch = self._ahead[tuple(numbers)]
        if wait([batch], max(0.0, end_s - time.monotonic())).not_done:
            return False
        return not wait(batch.result().alone.values(), max(0.0, end_s - time.monotonic())).not_done

    def _begin(self, numbers: Sequence[int]) -> None:
        if (key := tuple(numbers)) not in self._ahead:
            self._ahead[key] = self._near_reader.submit(partial(self._read_together, key))

    def _read_together(self, numbers: Sequence[int]) -> _Batch:
        """Reads what is near at once. What is far, slow or not as expected is read by all readers, one sample
        each, and its reader finds out what is wrong.
        """
        count = self._windows.window_tokens
        starts = [self._windows.start_of(number) for number in numbers]
        read, near = self._shards.read_near(starts, count, _NEAR_S)
        raw = numpy.frombuffer(read, self._dtype)
        if self._largest_id(raw) >= self._vocab_size:
            near = set()
        alone = {
            place: self._readers.submit(partial(self._sample, number))
            for place, number in enumerate(numbers)
            if place not in near
        }
        return _Batch(rows=_as_int64(raw).view(-1, count), alone=alone)

    def _sample(self, number: int) -> Tensor:
        start = self._windows.start_of(number)
        raw = numpy.frombuffer(self._shards.read(start, self._windows.window_tokens), self._dtype)
        if (largest := self._largest_id(raw)) >= self._vocab_size:
            where = self._shards.name_at(start + int(self._ids(raw).argmax()))
            raise DataError(
                f"data: {where}: has the token id {largest:,}, but the model's vocabulary ends at "
                f"{self._vocab_size - 1:,}; pack with the model's tokenizer"
            )
        return _as_int64(raw)

    def _largest_id(self, raw: _Ids) -> int:
        # At their own width, unsigned: these are the fewest bytes to look at.
        return int(self._ids(raw).max())

    def _ids(self, raw: _Ids) -> _Ids:
        return raw if self._id_mask is None else raw & self._id_mask


def _as_int64(raw: _Ids) -> Tensor:
    # By numpy: torch deals out many numbers to threads of its own, a team for each reader.
    return torch.from_numpy(raw.astype(numpy.int64))


def _check_folders(task: Task) -> None:
    """Checks that shard cache and saves don't share a folder: on this node, links may make one of two."""
    disk = task.saving and task.saving.disk
    for folder in {tokens.cache.folder for tokens in task.places if tokens.cache}:
        if disk and (problem := folder_conflict(folder, disk)):
            raise DataError(problem)


def _caches(task: Task) -> list[ShardCache]:
    """Those of all sources, to be told what else of this run lies beside a cache."""
    return [_cache_of(tokens, open_store(tokens.url), tokens.cache) for tokens in task.places if tokens.cache]


def _cache_of(
    tokens: Tokens, store: Copyable, limits: ShardCacheLimits, *, num_sources: int = 1
) -> ShardCache:
    return ShardCache(
        store,
        tokens.index,
        Path(limits.folder),
        limits.limit_bytes,
        share_bytes=limits.share_bytes,
        num_sources=num_sources,
    )


def _token_source(task: Task, tokens: Tokens, context: Context, near_reader: PrefetchPool) -> TokenSource:
    ledger = tokens.ledger and LedgerWriter(
        task.open_store(), tokens.ledger, term=task.term, rank=context.rank
    )
    num_sources = len(task.places) + bool(task.held_out)
    sources = _open_sources(task, tokens, context, ledger or None, num_sources=num_sources)
    num_readers = max(_FEWEST_READERS, _NUM_READERS // num_sources)
    return TokenSource(
        tokens, task.recipe.model.vocab_size, sources, near_reader=near_reader, num_readers=num_readers
    )


def _open_sources(
    task: Task, tokens: Tokens, context: Context, ledger: LedgerWriter | None, *, num_sources: int
) -> list[Source]:
    """What samples are read from, and what that reads from in turn; one of ``num_sources`` places."""
    keep = ledger.write if ledger else None
    store, names = open_store(tokens.url), [shard.name for shard in tokens.index.shards]
    share = slice(context.rank, None, context.world_size)
    if tokens.cache is None:
        checked = CheckedShards(
            store, tokens.index, tokens.versions, names[share], tokens.known, keep, num_sources=num_sources
        )
        checked.start()
        return [checked]
    fitting = _cache_of(tokens, store, tokens.cache).fitting
    # No copy tells whether a shard is the one that the run began with, unless the index does.
    unnamed = {shard.name for shard in tokens.index.shards if not shard.is_named_by_its_bytes}
    far = [name for name in names if name not in fitting or name in unnamed]
    checked = CheckedShards(
        store, tokens.index, tokens.versions, far[share], tokens.known, keep, num_sources=num_sources
    )
    checked.start()
    cache = _cache_of(tokens, checked, tokens.cache, num_sources=num_sources)
    if context.local_rank == 0:
        cache.copy_all(_caches(task))
    return [cache, checked]
