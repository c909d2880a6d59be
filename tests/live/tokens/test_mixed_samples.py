"""What ranks read of a mixture: the source and the sample that the position says, whoever reads it."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
import pytest
import torch
import torch.nn.functional as F

from checkpointing.errors import Unfit
from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.formats.parquet_tokens import describe
from jobs.training.data.mixed_source import MixedSource
from jobs.training.data.mixture import _seed_of, mixed_at, shares_of
from jobs.training.data.samples import Samples
from jobs.training.models.head import chunked_cross_entropy, keeping_row_losses, whole_cross_entropy
from jobs.training.state.near_tiers import NearTiers
from jobs.training.state.restoring import restore
from jobs.training.task.context import Context
from jobs.training.task.sample_order import IN_BLOCKS, sample_at
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Mixture, ShardCacheLimits, Task, WeightedTokens
from jobs.training.task.token_index import DataError, TokenIndex
from jobs.training.task.windows import cut_into_windows
from reporting.long_runs.summarising import long_runs
from reporting.recording.parts import decode_part, parts_of, rows_in
from tests.live.attempts import Wanted, attempt_each, newest_manifest
from tests.live.ranks import run_ranks
from tests.live.tokens.test_samples import NUM_HELD_OUT, WORLDS, World, samples_of, step_of, write_tokens
from tests.live.trainings import recipe_for

WEIGHTS = {"web": 5, "code": 3, "books": 1}


def ids_of(number: int) -> list[int]:
    """Of the source of that number. Every token says which it is and where it stands."""
    return [100 * number + place % 97 if place % 2 else place // 97 for place in range(1400 + 700 * number)]


def mixture_of(weights: dict[str, int], place: Path, end_id: int | None = None) -> Mixture:
    sources = []
    for number, (name, weight) in enumerate(weights.items()):
        ids = ids_of(number)
        windows = cut_into_windows(len(ids), seq_len=32, num_held_out=4)
        tokens = replace(write_tokens(place / name, ids), windows=windows, end_id=end_id)
        sources.append(WeightedTokens(name=name, weight=weight, tokens=tokens))
    return Mixture(sources=tuple(sources))


def mixed(world: World, mixture: Mixture) -> list[Samples]:
    return samples_of(world, None, mixture=mixture)


@pytest.mark.parametrize("world", WORLDS)
def test_a_position_has_the_sample_that_it_should_have_at_every_world_size(
    world: World, tmp_path: Path
) -> None:
    mixture = mixture_of(WEIGHTS, tmp_path)
    ranks, shares = mixed(world, mixture), shares_of(mixture)
    for position in (0, 8, 16, 720, 8):
        wanted = []
        for place in range(position, position + 8):
            source, number = mixed_at(place, shares, seed=1)
            wanted.append(tuple(ids_of(source)[32 * number : 32 * number + 33]))
        assert Counter(step_of(ranks, position)) == Counter(wanted)


def cached_mixture(place: Path, share_bytes: int, *, of_parquet: bool) -> Mixture:
    """The same ids as in ``mixture_of``, of which the second source's lie in Parquet, all behind a cache."""
    mixture = mixture_of(WEIGHTS, place)
    limits = ShardCacheLimits(folder=str(place / "cache"), limit_bytes=10**6, share_bytes=share_bytes)
    sources = [replace(one, tokens=replace(one.tokens, cache=limits)) for one in mixture.sources]
    if of_parquet:
        far = LocalStore(place / "parquet")
        sink = BytesIO()
        rows = [ids_of(1)[first : first + 90] for first in range(0, len(ids_of(1)), 90)]
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": rows}), sink, row_group_size=5)
        far.put("a.parquet", sink.getvalue())
        index = TokenIndex(dtype="uint32", shards=(describe(far, "a.parquet"),))
        sources[1] = replace(sources[1], tokens=replace(sources[1].tokens, url=far.url, index=index))
    return replace(mixture, sources=tuple(sources))


@pytest.mark.parametrize("share_bytes", [1500, 100_000])
@pytest.mark.parametrize("of_parquet", [False, True])
def test_sources_behind_a_cache_and_of_parquet_have_the_same_samples_at_the_same_positions(
    share_bytes: int, of_parquet: bool, tmp_path: Path
) -> None:
    if of_parquet and share_bytes == 1500:
        [samples] = mixed(WORLDS[0], cached_mixture(tmp_path, share_bytes, of_parquet=True))
        with pytest.raises(DataError, match=r"a\.parquet: its decoded ids don't fit in data\.local\.gib"):
            samples.rows(0)
        return
    plain = mixed(WORLDS[0], mixture_of(WEIGHTS, tmp_path))
    for world in WORLDS:
        ranks = mixed(world, cached_mixture(tmp_path, share_bytes, of_parquet=of_parquet))
        for position in (0, 8, 720, 8):
            assert all(one.wait(position, 60.0) for one in ranks)
            assert Counter(step_of(ranks, position)) == Counter(step_of(plain, position))
    copies = {path.name for path in (tmp_path / "cache").rglob("*[0-9a-z].bin")}
    copies |= {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert ("a.parquet" in copies) == of_parquet
    assert "000000.bin" in copies


def test_a_shard_behind_a_cache_that_was_changed_ends_the_attempt(tmp_path: Path) -> None:
    mixture = cached_mixture(tmp_path, 100_000, of_parquet=True)
    shard = tmp_path / "books" / mixture.sources[2].tokens.index.shards[0].name
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    [samples] = mixed(WORLDS[0], mixture)
    assert samples.wait(0, 60.0)
    with pytest.raises(DataError, match="books"):
        samples.rows(0)


def test_held_out_samples_come_from_each_source_in_turn_and_are_trained_on_in_none(tmp_path: Path) -> None:
    mixture = mixture_of(WEIGHTS, tmp_path)
    [samples] = mixed(replace(WORLDS[0], micro_batch=2), mixture)
    numbers = [number for micro in samples.held_out() for number in micro]
    assert len(numbers) == NUM_HELD_OUT
    rows = [tuple(ids.tolist()) for micro in samples.held_out() for ids in samples.batch(micro)[0]]
    firsts = [32 * one.tokens.windows.num_samples + 1 for one in mixture.sources]
    places = [(0, firsts[0]), (1, firsts[1]), (2, firsts[2]), (0, firsts[0] + 32)]
    assert rows == [tuple(ids_of(source)[start : start + 32]) for source, start in places]


def test_a_shard_of_any_source_that_was_changed_ends_the_attempt(tmp_path: Path) -> None:
    mixture = mixture_of(WEIGHTS, tmp_path)
    shard = tmp_path / "books" / mixture.sources[2].tokens.index.shards[0].name
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    [samples] = mixed(WORLDS[0], mixture)
    while not samples.wait(0, 1.0):
        pass
    with pytest.raises(DataError, match="books"):
        samples.rows(0)


def test_all_sources_begin_to_read_before_one_is_waited_for(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    class Late:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self, numbers: Sequence[int], timeout_s: float) -> bool:
            asked.append((self.name, timeout_s > 0))
            return timeout_s > 0

    mixture = mixture_of(WEIGHTS, tmp_path)
    source = MixedSource(mixture, cast(Any, [Late(name) for name in WEIGHTS]))
    assert source.wait([0, 60, 120], 60.0)
    assert asked == [(name, is_waited_for) for is_waited_for in (False, True) for name in WEIGHTS]


def test_readers_of_many_sources_are_not_more_than_they_need_be(tmp_path: Path) -> None:
    many = mixture_of({f"source {number}": 1 for number in range(9)}, tmp_path)
    before = threading.active_count()
    [samples] = mixed(replace(WORLDS[0], micro_batch=2), many)
    # Two that read and one that compares, of each; and one for what is near.
    assert threading.active_count() - before <= 9 * 3 + 1
    assert samples.wait(0, 60.0)


def test_weights_that_change_between_attempts_count_from_there_on_at_any_world_size(tmp_path: Path) -> None:
    weights = [{"web": 5, "code": 3, "books": 1}, {"web": 1, "code": 1, "books": 6}]
    first, other = (mixture_of(one, tmp_path / "tokens") for one in weights)
    # How many steps are done then, on how many ranks.
    attempts = [(first, 3, 1), (other, 7, 2), (first, 10, 2)]
    for number, (mixture, num_steps, size) in enumerate(attempts):
        wanted = Wanted(
            name="r",
            recipe=recipe_for("ddp", world_size=size, grad_accum=4 // size),
            num_steps=num_steps,
            store=tmp_path / "store",
            diary=tmp_path / f"diary-{number}",
            mixture=mixture,
            shuffle="blocks",
        )
        [story, *_] = run_ranks(attempt_each, [wanted], num_ranks=size, tmp_path=tmp_path)[0]
        is_changed = any("from sample" in line for line in story.start.trail)
        assert is_changed == (number > 0)
    changes = [[0, "web 5, code 3, books 1"], [12, "web 1, code 1, books 6"], [28, "web 5, code 3, books 1"]]
    state = newest_manifest(tmp_path / "store", "r").cut.state
    assert (state["position"], state["stretches"], state["sample_order"]) == (40, changes, 10 + IN_BLOCKS)

    found: list[str] = []
    for number, (_, _, size) in enumerate(attempts):
        [term] = (tmp_path / f"diary-{number}").iterdir()
        # Before these stand where rank 0 went on, and what building an engine computes.
        num_read_here = (attempts[number][1] - (attempts[number - 1][1] if number else 0)) * 4 // size
        pages = [(term / str(rank)).read_text().splitlines()[-num_read_here:] for rank in range(size)]
        found += [digest for in_turn in zip(*pages, strict=True) for digest in in_turn]
    num_read, wanted_digests, sources = Counter[int](), [], []
    for place in range(40):
        mixture, begin = (other, 12) if 12 <= place < 28 else (first, 28 if place >= 28 else 0)
        source, _ = mixed_at(place - begin, shares_of(mixture), seed=1)
        windows = mixture.sources[source].tokens.windows
        name = mixture.sources[source].name
        number = sample_at(
            num_read[source], num_samples=windows.num_samples, seed=_seed_of(name, 1), order=IN_BLOCKS
        )
        num_read[source] += 1
        sources.append(name)
        ids = torch.tensor([ids_of(source)[32 * number : 32 * number + 32]])
        wanted_digests.append(hashlib.sha256(ids.numpy().tobytes()).hexdigest())
    assert found == wanted_digests

    [recorded], _ = long_runs(LocalStore(tmp_path / "store"))
    assert set(recorded.source_losses) == set(weights[0])
    rows = steps_of(tmp_path / "store")
    assert len(rows) == 10
    for step, row in enumerate(rows):
        counts = Counter(sources[4 * step : 4 * step + 4])
        losses = json.loads(row["source_losses"])
        assert set(losses) == set(counts)
        assert sum(losses[name] * counts[name] for name in counts) / 4 == pytest.approx(row["loss"], abs=1e-5)


def steps_of(place: Path) -> list[dict[str, Any]]:
    """The steps that rank 0 recorded."""
    store = LocalStore(place)
    names = [name for name in parts_of(store, "r") if name.table == "steps" and name.rank == 0]
    return [row for name in names for row in rows_in(decode_part(name, store.get(str(name))))]


@pytest.mark.parametrize("how", [whole_cross_entropy, chunked_cross_entropy])
def test_rows_losses_are_kept_and_change_no_gradient(
    how: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.training.models.head.tokens_per_chunk", lambda _: 5)
    hidden, weight = torch.randn(3, 7, 8), torch.randn(11, 8, requires_grad=True)
    labels = torch.randint(11, (3, 7))
    labels[1, 2:5] = -100
    how(hidden, weight, labels).backward()
    without, weight.grad = weight.grad, None
    with keeping_row_losses() as kept:
        how(hidden, weight, labels).backward()
        how(hidden[:1], weight.detach(), labels[:1])
    assert without is not None and weight.grad is not None
    torch.testing.assert_close(weight.grad, without, rtol=0, atol=1e-7)
    logits = hidden @ weight.detach().t()
    sums = [F.cross_entropy(logits[row], labels[row], reduction="sum") for row in range(3)]
    wanted = torch.stack([torch.stack(sums), torch.tensor([7.0, 4.0, 7.0])], dim=1)
    torch.testing.assert_close(kept[0], wanted)
    torch.testing.assert_close(kept[1], wanted[:1])
    how(hidden, weight, labels)
    assert len(kept) == 2


def test_a_run_that_would_leave_out_others_is_refused_before_it_trains(tmp_path: Path) -> None:
    task = Task(
        run="r",
        store="memory://",
        recipe=RunSpec.model_validate({"name": "r", "model": "llama-tiny", "steps": 1}).recipe(),
        vendor="cpu",
        simulated=False,
        num_steps=1,
        num_samples=40,
        saving=None,
        term=1,
        attempt="word",
        lineage="line",
        resume="latest",
        mixture=mixture_of({"web": 3, "code": 1}, tmp_path),
        skips=((4, 8),),
        skipped_in=((0, "web 1, code 1"),),
    )
    store = MemoryStore()
    alone = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))

    def start(task: Task) -> RecordedStretches:
        return restore(task, alone, cast(Any, None), Repository(store, "r"), None, NearTiers()).stretches

    assert (
        start(replace(task, skipped_in=((0, "web 3, code 1"),)))
        == start(replace(task, skips=()))
        == ((0, "web 3, code 1"),)
    )
    with pytest.raises(Unfit, match=r"data.sources: samples 4 to 7 are left out"):
        start(task)
