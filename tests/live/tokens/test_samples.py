"""What the ranks of a long run read: every sample of an epoch once, whoever reads it, and what is refused."""

import hashlib
import os
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from random import Random

import psutil
import pyarrow
import pyarrow.parquet
import pytest
import torch

from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.stores.local import LocalStore
from jobs.training.data import samples as samples_module
from jobs.training.data.formats.bin_files import index_of_bin
from jobs.training.data.formats.parquet_tokens import describe
from jobs.training.data.kept_files import KeptFiles, Piece
from jobs.training.data.samples import Samples, TokenSource
from jobs.training.data.shard_ledger import ledger_of, read_ledger
from jobs.training.data.synthetic import sample
from jobs.training.task.context import Context
from jobs.training.task.sample_order import NEWEST_ORDER, ORDERS, SampleOrder, sample_at
from jobs.training.task.task import Mixture, Saving, ShardCacheLimits, Task, Tokens, WeightedTokens
from jobs.training.task.token_index import DataError, TokenDtype, TokenIndex, TokenShard
from jobs.training.task.windows import cut_into_windows
from tests.live.late_device import LATE, LateDevice
from tests.live.trainings import CPU, recipe_for
from tests.unit.tokens.test_bin_files import megatron, nano_gpt

NUM_HELD_OUT = 4


@dataclass(frozen=True, kw_only=True)
class World:
    """How many ranks share a step of eight samples, and in which portions."""

    size: int
    micro_batch: int
    grad_accum: int


WORLDS = [World(size=1, micro_batch=4, grad_accum=2), World(size=4, micro_batch=1, grad_accum=2)]


def write_tokens(
    place: Path, ids: list[int], shard_tokens: int = 700, dtype: TokenDtype = "uint16"
) -> Tokens:
    shards = []
    for first in range(0, len(ids), shard_tokens):
        part = ids[first : first + shard_tokens]
        data = struct.pack(f"<{len(part)}{'H' if dtype == 'uint16' else 'I'}", *part)
        LocalStore(place).put(f"{first:06}.bin", data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(TokenShard(name=f"{first:06}.bin", num_tokens=len(part), sha256=digest))
    index = TokenIndex(dtype=dtype, shards=tuple(shards))
    windows = cut_into_windows(len(ids), seq_len=32, num_held_out=NUM_HELD_OUT)
    return Tokens(url=str(place), index=index, windows=windows)


def write_held_out(place: Path, ids: list[int]) -> Tokens:
    """As tokens that are evaluated on are cut: none of them is held out of the others."""
    windows = cut_into_windows(len(ids), seq_len=32, num_held_out=0)
    return replace(write_tokens(place, ids, shard_tokens=50), windows=windows)


def test_batches_go_to_a_device_from_pinned_memory_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateDevice(0)
    late.stand_in(monkeypatch)
    [samples] = samples_of(WORLDS[0], None)
    rows = samples.rows(0)
    monkeypatch.setattr(samples, "_device", LATE)
    with late.present():
        batches = samples.on_device(rows)
        assert late.num_pending == len(rows)
        assert (late.waits, late.events_waited_for, late.unpinned) == (0, 0, 0)
        for (ids, labels), row in zip(batches, rows, strict=True):
            assert torch.equal(ids.cpu(), row[:, :-1])
            assert torch.equal(labels.cpu(), row[:, 1:])


def samples_of(
    world: World,
    tokens: Tokens | None,
    saving: Saving | None = None,
    store: Path = Path("nowhere"),
    mixture: Mixture | None = None,
    order: SampleOrder = NEWEST_ORDER,
) -> list[Samples]:
    """Each rank's."""
    recipe = recipe_for(
        "ddp", world_size=world.size, micro_batch=world.micro_batch, grad_accum=world.grad_accum
    )
    task = Task(
        run="r",
        store=str(store),
        recipe=recipe,
        vendor="cpu",
        simulated=False,
        num_steps=1,
        num_samples=mixture.num_samples if mixture else tokens.windows.num_samples if tokens else 40,
        saving=saving,
        term=1,
        attempt="a",
        lineage="l",
        resume="latest",
        eval_samples=NUM_HELD_OUT,
        tokens=tokens,
        mixture=mixture,
    )
    contexts = [
        Context(rank=rank, world_size=world.size, local_rank=rank, device=CPU) for rank in range(world.size)
    ]
    return [Samples(task, context, order) for context in contexts]


def step_of(ranks: list[Samples], position: int) -> list[tuple[int, ...]]:
    return [tuple(row) for one in ranks for micro in one.rows(position) for row in micro.tolist()]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_samples_to_evaluate_on_are_the_first_of_another_place_each_once(
    world: World, is_mixed: bool, tmp_path: Path
) -> None:
    held_out_ids = [number % 400 for number in range(32 * 6 + 1)]
    held_out = write_held_out(tmp_path / "held-out", held_out_ids)
    own = write_tokens(tmp_path / "own", [7] * 1475)
    mixture = Mixture(sources=(WeightedTokens(name="a", weight=1, tokens=own),), held_out=held_out)
    tokens = None if is_mixed else replace(own, held_out=held_out)
    ranks = samples_of(world, tokens, mixture=mixture if is_mixed else None)
    rows = [
        tuple(ids.tolist())
        for samples in ranks
        for micro in samples.held_out()
        if samples.wait_for(micro, 60.0)
        for ids in samples.batch(micro)[0]
    ]
    expected = [tuple(held_out_ids[32 * number :][:32]) for number in range(NUM_HELD_OUT)]
    assert sorted(rows) == sorted(expected)
    assert set(step_of(ranks, 0)) == {(7,) * 33}


def test_a_shard_to_evaluate_on_that_was_changed_ends_the_attempt(tmp_path: Path) -> None:
    held_out = write_held_out(tmp_path / "held-out", [number % 400 for number in range(200)])
    own = write_tokens(tmp_path / "own", [7] * 1475)
    shard = tmp_path / "held-out" / held_out.index.shards[0].name
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    [samples] = samples_of(WORLDS[0], replace(own, held_out=held_out))
    [numbers] = list(samples.held_out())[:1]
    while not samples.wait_for(numbers, 1.0):
        pass
    with pytest.raises(DataError, match="held-out"):
        samples.batch(numbers)


@pytest.mark.parametrize("world", WORLDS)
def test_an_epoch_has_every_window_of_the_text_once_and_none_that_is_held_out(
    world: World, tmp_path: Path
) -> None:
    # Every token says where it stands, in two digits of base 500.
    ids = [number for place in range(1475) for number in (place // 500, place % 500)]
    tokens = write_tokens(tmp_path, ids)
    ranks = samples_of(world, tokens)
    num_samples = tokens.windows.num_samples
    assert num_samples == 88

    read = [row for position in range(0, num_samples, 8) for row in step_of(ranks, position)]
    held_out = [
        (*row, label)
        for one in ranks
        for batch, labels in map(one.batch, one.held_out())
        for row, label in zip(batch.tolist(), labels[:, -1].tolist(), strict=True)
    ]

    windows = [tuple(ids[32 * number : 32 * number + 33]) for number in range(num_samples)]
    assert sorted(read) == sorted(windows)
    first = 32 * num_samples + 1
    assert sorted(held_out) == sorted(
        tuple(ids[start : start + 33]) for start in range(first, first + NUM_HELD_OUT * 32, 32)
    )


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_random_positions_have_the_samples_of_the_definition(
    order: SampleOrder, is_cached: bool, tmp_path: Path
) -> None:
    """Near samples are read many at a time, those across shards and the rest one by one."""
    ids = [number * number % 509 for number in range(40_000)]
    tokens = write_tokens(tmp_path / "far", ids)
    cache = ShardCacheLimits(folder=str(tmp_path / "cache"), limit_bytes=40_000)
    ranks = samples_of(WORLDS[0], replace(tokens, cache=cache) if is_cached else tokens, order=order)
    num_samples, random = tokens.windows.num_samples, Random(5)
    position = 0
    for _ in range(200):
        numbers = [sample_at(position + at, num_samples=num_samples, seed=1, order=order) for at in range(8)]
        assert step_of(ranks, position) == [tuple(ids[32 * number : 32 * number + 33]) for number in numbers]
        # Mostly the next step, which was expected.
        position = random.choice([position + 8] * 3 + [random.randrange(3 * num_samples)])


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_shard_that_is_changed_while_it_is_open_ends_the_attempt(change: str, tmp_path: Path) -> None:
    (ranks,) = samples_of(WORLDS[0], write_tokens(tmp_path, [number % 511 for number in range(3000)]))
    while not ranks.wait(0, timeout_s=1.0):
        pass
    ranks.rows(0)
    for shard in tmp_path.iterdir():
        data = bytes(reversed(shard.read_bytes()))
        shard.unlink()
        if change == "replaced":
            shard.write_bytes(data)
    with pytest.raises(DataError, match="is gone" if change == "removed" else "its bytes are not those"):
        for position in range(8, 80, 8):
            ranks.rows(position)


def test_slow_samples_on_this_node_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a network file system: not one after the other."""
    monkeypatch.setattr(samples_module, "_NEAR_S", -1.0)
    monkeypatch.setattr(KeptFiles, "fill", None)
    ids = [number % 509 for number in range(3000)]
    tokens = write_tokens(tmp_path, ids)
    num_samples = tokens.windows.num_samples
    numbers = [sample_at(place, num_samples=num_samples, seed=1) for place in range(8)]
    found = step_of(samples_of(WORLDS[0], tokens), 0)
    assert found == [tuple(ids[32 * number : 32 * number + 33]) for number in numbers]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_what_was_read_ahead_is_not_read_again(
    is_mixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, num_read = KeptFiles.fill, Counter[str]()

    def counted(files: KeptFiles, name: str, pieces: Sequence[Piece]) -> str | None:
        num_read[name] += len(pieces)
        return fill(files, name, pieces)

    monkeypatch.setattr(KeptFiles, "fill", counted)
    tokens = write_tokens(tmp_path, [number % 511 for number in range(3000)], shard_tokens=3000)
    mixture = Mixture(sources=(WeightedTokens(name="a", weight=1, tokens=tokens),))
    (ranks,) = samples_of(WORLDS[0], None if is_mixed else tokens, mixture=mixture if is_mixed else None)
    for position in range(0, 88, 8):
        while not ranks.wait(position, 1.0):
            pass
        ranks.rows(position)
    # The two steps behind the last one may be read already.
    assert 88 <= num_read.total() <= 88 + 2 * 8


def test_a_jump_reads_what_it_would_have_read_without_it(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path, [number % 511 for number in range(3000)])
    (straight,), (jumping,) = samples_of(WORLDS[0], tokens), samples_of(WORLDS[0], tokens)
    jumping.rows(40)
    for position in (16, 24, 0, 84):
        assert all(map(torch.equal, jumping.rows(position), straight.rows(position)))


def test_shards_brought_near_are_read_as_those_that_are_not(tmp_path: Path) -> None:
    far = write_tokens(tmp_path / "far", [number % 511 for number in range(3000)])
    cache = ShardCacheLimits(folder=str(tmp_path / "cache"), limit_bytes=2 * 1500)
    (plain,) = samples_of(WORLDS[0], far)
    (brought,) = samples_of(WORLDS[0], replace(far, cache=cache))
    for position in range(0, 88, 8):
        assert all(map(torch.equal, brought.rows(position), plain.rows(position)))


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_flipped_bit_is_found_before_the_first_step(is_cached: bool, tmp_path: Path) -> None:
    far = write_tokens(tmp_path / "far", [number % 511 for number in range(3000)])
    cache = ShardCacheLimits(folder=str(tmp_path / "cache"), limit_bytes=10**6)
    shard = tmp_path / "far" / "000700.bin"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    ranks = samples_of(WORLDS[1], replace(far, cache=cache) if is_cached else far)
    assert all(one.wait(0, timeout_s=60) for one in ranks)
    with pytest.raises(DataError, match=r"000700\.bin: its bytes are not those that its index names"):
        step_of(ranks, 0)


def test_a_flipped_bit_of_parquet_is_found_by_the_next_attempt_before_its_first_step(tmp_path: Path) -> None:
    far, ledger = LocalStore(tmp_path / "far"), ledger_of("r", 1)
    sink = BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"ids": [number % 511 for number in range(3000)]}), sink)
    far.put("a.parquet", sink.getvalue())
    index = TokenIndex(dtype="uint32", shards=(describe(far, "a.parquet"),))
    windows = cut_into_windows(3000, seq_len=32, num_held_out=NUM_HELD_OUT)
    cache = ShardCacheLimits(folder=str(tmp_path / "cache"), limit_bytes=10**6)

    def attempt() -> list[Samples]:
        tokens = Tokens(
            url=far.url,
            index=index,
            windows=windows,
            cache=cache,
            versions=(far.look("a.parquet")[1],),
            known=read_ledger(LocalStore(tmp_path / "store"), ledger, {"a.parquet"}),
            ledger=ledger,
        )
        ranks = samples_of(WORLDS[1], tokens, store=tmp_path / "store")
        assert all(one.wait(0, timeout_s=60) for one in ranks)
        return ranks

    step_of(attempt(), 0)
    harmed = bytearray(sink.getvalue())
    harmed[len(harmed) // 4] ^= 1
    far.put("a.parquet", harmed)
    assert describe(far, "a.parquet") == index.shards[0]
    with pytest.raises(DataError, match=r"a\.parquet: its bytes are not those that this run began with"):
        step_of(attempt(), 0)


def test_one_folder_for_tokens_and_saves_is_refused_where_only_the_nodes_have_the_link(
    tmp_path: Path,
) -> None:
    far = write_tokens(tmp_path / "far", [number % 511 for number in range(3000)])
    (tmp_path / "link").symlink_to("disk")
    cache = ShardCacheLimits(folder=str(tmp_path / "disk"), limit_bytes=2 * 1500)
    saving = Saving(
        cadence=Cadence(), retention=Retention(), disk=str(tmp_path / "link"), disk_keep=2, deadline_s=1
    )
    with pytest.raises(
        DataError, match=r"^data\.local\.dir: .* and checkpoint\.local\.dir: .* are one place"
    ):
        samples_of(WORLDS[0], replace(far, cache=cache), saving)


def test_a_shard_that_is_larger_than_all_memory_is_read_without_being_held(tmp_path: Path) -> None:
    """A sparse file, whose tokens are all 0."""
    num_bytes = 2 * psutil.virtual_memory().total
    (tmp_path / "0.bin").touch()
    os.truncate(tmp_path / "0.bin", num_bytes)
    index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=num_bytes // 2),))
    windows = cut_into_windows(num_bytes // 2, seq_len=32, num_held_out=NUM_HELD_OUT)
    (reader,) = samples_of(WORLDS[0], Tokens(url=str(tmp_path), index=index, windows=windows))
    reader.rows(0)
    before = psutil.Process().memory_info().rss
    far = range(0, windows.num_samples - 8, windows.num_samples // 200)
    assert all(not micro.any() for position in far for micro in reader.rows(position))
    assert psutil.Process().memory_info().rss - before < 64 * 2**20 < num_bytes / 100


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [("uint16", 512), ("uint16", 2**15), ("uint16", 2**16 - 1), ("uint32", 2**31), ("uint32", 2**32 - 1)],
)
def test_an_id_beyond_the_vocabulary_is_found_as_it_is_read_with_its_shard(
    dtype: TokenDtype, wrong: int, tmp_path: Path
) -> None:
    ids = [number % 511 for number in range(3000)]
    ids[1500] = wrong
    (ranks,) = samples_of(WORLDS[0], write_tokens(tmp_path, ids, dtype=dtype))
    with pytest.raises(
        DataError, match=rf"001400\.bin: has the token id {wrong:,}, but .* ends at 511; pack"
    ):
        for position in range(0, 88, 8):
            ranks.rows(position)


def test_synthetic_samples_are_what_they_were_to_the_bit() -> None:
    """Runs that began with an earlier version go on with the same data."""
    (ranks,) = samples_of(WORLDS[0], None)
    recipe = recipe_for("ddp", world_size=1, micro_batch=4, grad_accum=2)
    expected = [sample(recipe, sample_at(place, num_samples=40, seed=1)) for place in range(16, 24)]
    assert torch.equal(torch.cat(ranks.rows(16)), torch.stack(expected))
    held_out = [sample(recipe, 40 + number)[:-1] for number in range(NUM_HELD_OUT)]
    assert torch.equal(
        torch.cat([ids for ids, _ in map(ranks.batch, ranks.held_out())]), torch.stack(held_out)
    )


@pytest.mark.parametrize("code", [4, 8])
def test_samples_are_read_in_place_from_other_tools_files(code: int, tmp_path: Path) -> None:
    ids = [number % 251 for number in range(1400)]
    data, idx = megatron([ids[:300], ids[300:1200], ids[1200:]], code)
    LocalStore(tmp_path).put("corpus.bin", data)
    LocalStore(tmp_path).put("corpus.idx", idx)
    LocalStore(tmp_path).put("train.bin", nano_gpt(ids))
    for name in ("corpus.idx", "train.bin"):
        index = index_of_bin(LocalStore(tmp_path), name)
        windows = cut_into_windows(len(ids), seq_len=32, num_held_out=NUM_HELD_OUT)
        ranks = samples_of(WORLDS[1], Tokens(url=str(tmp_path), index=index, windows=windows))
        numbers = [sample_at(place, num_samples=windows.num_samples, seed=1) for place in range(8, 16)]
        wanted = [tuple(ids[32 * number : 32 * number + 33]) for number in numbers]
        assert sorted(step_of(ranks, 8)) == sorted(wanted)


def test_why_samples_that_nobody_needs_any_more_could_not_be_read_ends_nothing() -> None:
    source = object.__new__(TokenSource)
    failed: Future[object] = Future()
    failed.set_exception(DataError("no"))
    source._ahead = {(5,): failed}
    source.expect([])
    assert source._ahead == {}
