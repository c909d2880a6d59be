"""How fast samples are read from a local disk: by our loader, by a memory map, by torch's own loader, and by
MosaicML Streaming where it is installed (it is no dependency of ours).

All read the same samples in the same order, in micro-batches of int64, and compute nothing. The memory map is
nanoGPT's way to make a batch. It is given its order as a list, while ours computes its own; Streaming's files
hold the samples in that order.
"""

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from jobs.training.data.samples import Samples
from jobs.training.task.context import Context
from jobs.training.task.job import OptimizerConfig, Recipe
from jobs.training.task.presets import preset
from jobs.training.task.sample_order import sample_at
from jobs.training.task.task import Task, Tokens
from jobs.training.task.token_index import TokenIndex, TokenShard
from jobs.training.task.windows import Windows, cut_into_windows

NUM_TOKENS, NUM_SHARDS, ROUNDS = 48_000_000, 4, 5
# Of each length: how many samples make a micro-batch, and how many micro-batches are read in a round.
SHAPES = {128: (64, 300), 2048: (16, 200), 8192: (8, 100)}
NUM_WORKERS = 2
OF_A_MAP, OF_TORCH = 0.5, 2.0
_SEED = 7


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        index = _write(Path(folder))
        met = [_of_length(Path(folder), index, seq_len) for seq_len in SHAPES]
    return all(met)


def _of_length(folder: Path, index: TokenIndex, seq_len: int) -> bool:
    micro_batch, num_batches = SHAPES[seq_len]
    windows = cut_into_windows(index.num_tokens, seq_len=seq_len, num_held_out=0)
    order = [
        sample_at(place, num_samples=windows.num_samples, seed=_SEED)
        for place in range(micro_batch * num_batches)
    ]
    ways: dict[str, Callable[[], Iterator[Tensor]]] = {
        "ours": lambda: _ours(folder, index, windows, micro_batch, num_batches),
        "memory map": lambda: _mapped(folder / "all", order, seq_len, micro_batch),
        "torch": lambda: iter(_torch(folder / "all", order, seq_len, micro_batch)),
    }
    if has_streaming := find_spec("streaming") is not None:
        shards = _written_by_streaming(folder, order, seq_len)
        ways["streaming"] = lambda: iter(_streaming(shards, micro_batch))
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        seen = {}
        for name, way in ways.items():
            batches = way()
            # What begins workers, opens files and compares bytes is no part of it.
            first = next(batches)
            began = time.perf_counter()
            num_read = sum(len(rows) for rows in batches)
            taken[name].append((time.perf_counter() - began) / num_read)
            seen[name] = first
        assert all(torch.equal(first, seen["ours"]) for first in seen.values())
    us = {name: median(found) * 1e6 for name, found in taken.items()}
    of_map, of_torch = us["memory map"] / us["ours"], us["torch"] / us["ours"]
    print(
        f"data, {seq_len:5,} ids  {us['ours']:.1f} us a sample; a memory map {us['memory map']:.1f}, so "
        f"{of_map:.2f} of its speed (bound {OF_A_MAP}); torch's loader, {NUM_WORKERS} workers, "
        f"{us['torch']:.1f}, so {of_torch:.1f}x of its speed (bound {OF_TORCH:g})"
    )
    met = of_map >= OF_A_MAP and of_torch >= OF_TORCH
    if not has_streaming:
        print("                 MosaicML Streaming is not installed: not compared")
        return met
    of_streaming = us["streaming"] / us["ours"]
    print(
        f"                 MosaicML Streaming, {NUM_WORKERS} workers, {us['streaming']:.1f}, so "
        f"{of_streaming:.1f}x of its speed (bound {OF_TORCH:g})"
    )
    return met and of_streaming >= OF_TORCH


def _ours(
    folder: Path, index: TokenIndex, windows: Windows, micro_batch: int, num_batches: int
) -> Iterator[Tensor]:
    recipe = Recipe(
        model=preset("llama-tiny"),
        strategy="ddp",
        world_size=1,
        seq_len=windows.seq_len,
        micro_batch=micro_batch,
        grad_accum=1,
        precision="fp32",
        seed=_SEED,
        optimizer=OptimizerConfig(),
    )
    task = Task(
        run="r", store="nowhere", recipe=recipe, vendor="cpu", simulated=False, num_steps=1,
        num_samples=windows.num_samples, saving=None, term=1, attempt="a", lineage="l", resume="latest",
        eval_samples=0, tokens=Tokens(url=str(folder), index=index, windows=windows),
    )  # fmt: skip
    samples = Samples(task, Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu")))
    while not samples.wait(0, 1.0):
        pass
    for number in range(num_batches):
        yield from samples.rows(number * micro_batch)


def _mapped(file: Path, order: list[int], seq_len: int, micro_batch: int) -> Iterator[Tensor]:
    ids, numbers = numpy.memmap(file, dtype=numpy.uint16, mode="r"), iter(order)
    while batch := list(islice(numbers, micro_batch)):
        yield torch.stack(
            [torch.from_numpy(ids[number * seq_len :][: seq_len + 1].astype(numpy.int64)) for number in batch]
        )


class _Mapped(Dataset[Tensor]):
    def __init__(self, file: Path, seq_len: int) -> None:
        self._ids = numpy.memmap(file, dtype=numpy.uint16, mode="r")
        self._seq_len = seq_len

    def __getitem__(self, number: int) -> Tensor:
        start = number * self._seq_len
        return torch.from_numpy(self._ids[start : start + self._seq_len + 1].astype(numpy.int64))


def _torch(file: Path, order: list[int], seq_len: int, micro_batch: int) -> DataLoader[Tensor]:
    return DataLoader(_Mapped(file, seq_len), batch_size=micro_batch, sampler=order, num_workers=NUM_WORKERS)


def _written_by_streaming(folder: Path, order: list[int], seq_len: int) -> Path:
    from streaming import MDSWriter

    ids, shards = numpy.memmap(folder / "all", dtype=numpy.uint16, mode="r"), folder / f"mds-{seq_len}"
    with MDSWriter(out=str(shards), columns={"ids": f"ndarray:uint16:{seq_len + 1}"}) as writer:
        for number in order:
            writer.write({"ids": numpy.asarray(ids[number * seq_len :][: seq_len + 1])})
    return shards


def _streaming(shards: Path, micro_batch: int) -> DataLoader[Tensor]:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(shards), shuffle=False, batch_size=micro_batch)

    def together(samples: list[dict[str, "numpy.typing.NDArray[numpy.uint16]"]]) -> Tensor:
        return torch.stack([torch.from_numpy(one["ids"].astype(numpy.int64)) for one in samples])

    return DataLoader(dataset, batch_size=micro_batch, num_workers=NUM_WORKERS, collate_fn=together)


def _write(folder: Path) -> TokenIndex:
    random, share = numpy.random.default_rng(_SEED), NUM_TOKENS // NUM_SHARDS
    shards = []
    with (folder / "all").open("wb") as whole:
        for number in range(NUM_SHARDS):
            data = random.integers(512, size=share, dtype=numpy.uint16).tobytes()
            (folder / f"{number}.bin").write_bytes(data)
            whole.write(data)
            shards.append(TokenShard(name=f"{number}.bin", num_tokens=share))
    return TokenIndex(dtype="uint16", shards=tuple(shards))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
