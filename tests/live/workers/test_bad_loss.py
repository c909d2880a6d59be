"""A loss that goes wrong ends an attempt on all ranks, is never saved, and is not met again on going on."""

import random
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Load
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from jobs.recovery.journal import read_note
from jobs.training.data.synthetic import sample
from jobs.training.health.failures import InvalidLoss
from jobs.training.health.loss_guard import RankLossGuard, StepDone
from jobs.training.models.decoder import Decoder
from jobs.training.task.job import Recipe, Strategy
from jobs.training.task.measurement import BadLoss
from jobs.training.task.sample_order import sample_at
from jobs.training.task.spikes import SpikeBound
from jobs.training.task.stop_request import StopRequest
from tests.live.attempts import NUM_SAMPLES, Wanted, attempt, digests_of, newest_manifest
from tests.live.command_line import run, write_spec
from tests.live.ranks import run_ranks
from tests.live.runs.test_train import train_command
from tests.live.tokens.test_samples import NUM_HELD_OUT, write_tokens
from tests.live.tokens.test_token_runs import write_index
from tests.live.trainings import recipe_for

# Of four samples each; the third one reads positions 8 to 11.
BAD_STEP, BAD_SAMPLES = 3, (8, 12)
# Of the steps 4 and 5.
HIGH_SAMPLES = (12, 20)
NATIVE: tuple[Strategy, ...] = ("ddp", "fsdp")
DEEPSPEEDS: tuple[Strategy, ...] = ("zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Curse:
    """What a batch with a sample at one of these positions does to the model's output."""

    positions: range
    factor: float


NOISY = """
name: r
model: llama-tiny
world_size: 2
seq_len: 32
steps: 64
eval: {samples: 4}
optimizer: {lr: 0.01, warmup_steps: 5}
checkpoint: {every_steps: 1, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60}
"""

# Which only rank 1 reads.
NOT_FINITE = Curse(range(BAD_SAMPLES[0] + 1, BAD_SAMPLES[0] + 2), float("nan"))
TOO_HIGH = Curse(range(*HIGH_SAMPLES), 1000.0)


@contextmanager
def cursed(recipe: Recipe, curse: Curse, num_samples: int = NUM_SAMPLES) -> Iterator[None]:
    numbers = [sample_at(one, num_samples=num_samples, seed=recipe.seed) for one in curse.positions]
    with striking([sample(recipe, number)[:-1] for number in numbers], curse.factor):
        yield


@contextmanager
def striking(samples: Sequence[Tensor], factor: float) -> Iterator[list[Tensor]]:
    """What those samples do to the model's output, and which of them were met so far."""
    met: list[Tensor] = []

    def strike(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not isinstance(module, Decoder):
            return None
        now = [ids for row in inputs[0] for ids in samples if torch.equal(row, ids)]
        met.extend(now)
        return output * factor if now else None

    hook = register_module_forward_hook(strike)
    try:
        yield met
    finally:
        hook.remove()


def meet_each(curse: Curse, wanted: list[Wanted]) -> list[BadLoss | None]:
    """Runs on a rank."""
    return [meet(curse, one) for one in wanted]


def meet(curse: Curse, wanted: Wanted) -> BadLoss | None:
    """How the loss went wrong; None if it didn't."""
    try:
        with cursed(wanted.recipe, curse):
            attempt(wanted)
    except InvalidLoss as error:
        return error.bad_loss
    return None


EXPECTED = BadLoss(step=BAD_STEP, good_step=BAD_STEP - 1, samples=BAD_SAMPLES)


def steps_of(store: Path, run: str) -> list[int]:
    return [one.step for one in Repository(open_store(str(store)), run).refresh().generations]


def unsaved(strategy: Strategy, store: Path) -> Wanted:
    """Nothing is to be saved before its end: so nobody asks for the loss of all ranks meanwhile."""
    recipe = recipe_for(strategy, world_size=2)
    return Wanted(name=strategy, recipe=recipe, num_steps=6, store=store, every_steps=100)


@pytest.mark.soak
def test_what_one_rank_saw_ends_all_is_never_saved_and_is_gone_around_as_if_it_had_been_known_before(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    first = Wanted(name="r", recipe=recipe_for("ddp", world_size=2), num_steps=5, store=store, every_steps=1)
    around = replace(first, skips=(BAD_SAMPLES,))
    native = [unsaved(strategy, store) for strategy in NATIVE]
    wanted = [*native, first, around, replace(around, name="straight")]
    found = run_ranks(partial(meet_each, NOT_FINITE), wanted, num_ranks=2, tmp_path=tmp_path)
    assert found == [[EXPECTED, EXPECTED, EXPECTED, None, None]] * 2
    assert [steps_of(store, run) for run in (*NATIVE, "r")] == [[], [], [1, 2, 3, 4, 5]]
    newest, straight = newest_manifest(store, "r"), newest_manifest(store, "straight")
    assert newest.cut.state["position"] == 24
    assert digests_of(newest) == digests_of(straight)


def test_a_loss_that_stays_far_too_high_ends_all_and_is_gone_around_as_if_it_had_been_known_before(
    tmp_path: Path,
) -> None:
    """It is known at the second step in a row, when the first one has been saved already."""
    store = tmp_path / "store"
    bound = SpikeBound(num_recent=4, in_a_row=2)
    recipe = recipe_for("ddp", world_size=2)
    first = Wanted(name="r", recipe=recipe, num_steps=6, store=store, every_steps=1, spike_bound=bound)
    around = replace(first, num_steps=4, skips=(HIGH_SAMPLES,), resume="step:3")
    wanted = [first, around, replace(around, name="straight", resume="latest")]
    found = run_ranks(partial(meet_each, TOO_HIGH), wanted, num_ranks=2, tmp_path=tmp_path)
    spike = BadLoss(step=5, good_step=3, samples=HIGH_SAMPLES)
    assert found == [[spike, None, None]] * 2
    assert steps_of(store, "r") == [1, 2, 3, 4, 4]
    newest, straight = newest_manifest(store, "r"), newest_manifest(store, "straight")
    assert newest.cut.state["position"] == 24
    assert digests_of(newest) == digests_of(straight)


def test_what_the_disks_alone_have_of_a_loss_that_stays_too_high_is_not_gone_on_from(tmp_path: Path) -> None:
    bound, store = SpikeBound(num_recent=4, in_a_row=2), tmp_path / "store"
    recipe = recipe_for("ddp", world_size=2)
    first = Wanted(
        name="r", recipe=recipe, num_steps=6, store=store, disk=tmp_path / "disk", every_steps=1,
        store_every=3, spike_bound=bound,
    )  # fmt: skip
    around = replace(first, num_steps=4, skips=(HIGH_SAMPLES,), spoilt=((1, 3),))
    found = run_ranks(partial(meet_each, TOO_HIGH), [first, around], num_ranks=2, tmp_path=tmp_path)
    spike = BadLoss(step=5, good_step=3, samples=HIGH_SAMPLES)
    assert found == [[spike, None]] * 2
    (loaded,) = [
        entry.entry
        for entry in Repository(open_store(str(store)), "r").records()
        if isinstance(entry.entry, Load)
    ]
    assert loaded.name.startswith(f"{3:012d}-")


def meet_before_a_wish(wanted: Wanted, curse: Curse, ids: list[int]) -> BadLoss | None:
    """Runs on a rank, which is asked to stop once it has met what is cursed."""
    assert wanted.tokens is not None
    windows = wanted.tokens.windows
    starts = [windows.start_of(number) for number in numbers_at(curse.positions, wanted)]
    samples = [torch.tensor(ids[start : start + windows.seq_len]) for start in starts]
    with striking(samples, curse.factor) as met:
        try:
            attempt(wanted, stop_request=lambda: StopRequest(aim="stop", why="a test") if met else None)
        except InvalidLoss as error:
            return error.bad_loss
    return None


def numbers_at(positions: range, wanted: Wanted) -> list[int]:
    assert wanted.tokens is not None
    num_samples = wanted.tokens.windows.num_samples
    return [sample_at(one, num_samples=num_samples, seed=wanted.recipe.seed) for one in positions]


def test_a_wish_that_is_heard_while_samples_are_late_saves_nothing_that_nobody_has_looked_at(
    tmp_path: Path,
) -> None:
    dice = random.Random(3)
    ids = [dice.randrange(200) for _ in range(3300)]
    tokens = write_tokens(tmp_path / "tokens", ids, shard_tokens=32)
    wanted = replace(unsaved("ddp", tmp_path / "store"), tokens=tokens)
    # Each sample begins in a shard of its own and ends in the next one.
    first, last = BAD_SAMPLES
    read_before = {shard for number in numbers_at(range(last), wanted) for shard in (number, number + 1)}
    late = next(one for one in numbers_at(range(last, 2 * last - first), wanted) if one not in read_before)
    wanted = replace(wanted, late=(tokens.index.shards[late].name,))
    found = run_ranks(meet_before_a_wish, wanted, NOT_FINITE, ids, num_ranks=2, tmp_path=tmp_path)
    assert found == [EXPECTED] * 2
    assert steps_of(tmp_path / "store", "ddp") == []


@pytest.mark.soak
def test_a_run_whose_loss_stays_high_goes_back_leaves_those_samples_out_and_comes_to_its_end(
    tmp_path: Path,
) -> None:
    """Of a text that says the same again and again, but for what the steps 51 to 53 read: noise.

    Each of them is looked at, as each is saved.
    """
    num_samples, noise = 200, range(100, 106)
    dice, ids = random.Random(7), [7] * (32 * (num_samples + NUM_HELD_OUT) + 2)
    for position in noise:
        start = 32 * sample_at(position, num_samples=num_samples, seed=0)
        ids[start + 1 : start + 32] = [dice.randrange(200) for _ in range(31)]
    (tmp_path / "tokens").mkdir()
    write_index(tmp_path / "tokens", struct.pack(f"<{len(ids)}H", *ids))
    spec = write_spec(tmp_path, NOISY + f"data: {{kind: tokens, path: {tmp_path / 'tokens'}}}\n")
    store = tmp_path / "store"
    done = run(train_command(spec, store))
    assert done.returncode == 0, done.stdout + done.stderr
    said = r"r: attempt 1 failed: .*the loss is \S+ at step 53 .*trying again in 0 s from step 50\n"
    assert re.search(said, done.stdout), done.stdout
    note = read_note(LocalStore(store), "r", 1)
    assert note is not None
    assert (note.how, note.skips) == ("failed", ((noise.start, noise.stop),))
    view = Repository(LocalStore(store), "r").refresh()
    spoilt = [one for one in view.generations if one.quarantined]
    assert {(one.term, one.step > 50) for one in spoilt} <= {(1, True)}
    assert (view.term, view.finished_step) == (2, 64)
    # Of 64 steps with two samples each, and those that were left out.
    assert newest_manifest(store, "r").cut.state["position"] == 2 * 64 + len(noise)


@pytest.mark.soak
def test_under_deepspeed_too_what_one_rank_saw_ends_all(tmp_path: Path) -> None:
    store = tmp_path / "store"
    wanted = [unsaved(strategy, store) for strategy in DEEPSPEEDS]
    found = run_ranks(partial(meet_each, NOT_FINITE), wanted, num_ranks=2, tmp_path=tmp_path)
    assert found == [[EXPECTED] * len(DEEPSPEEDS)] * 2
    assert [steps_of(store, strategy) for strategy in DEEPSPEEDS] == [[]] * len(DEEPSPEEDS)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def do(
    guard: RankLossGuard,
    step: int,
    loss: float,
    *,
    is_asked: bool = True,
    norm: float = 1.0,
    is_agreed: bool = True,
) -> None:
    """``is_agreed``: an alarm that this rank raised is in this step's control word already."""
    guard.check_last_step()
    is_alarmed = guard.is_alarmed and is_agreed
    done = StepDone(
        step=step,
        samples=(4 * (step - 1), 4 * step),
        loss=torch.tensor(loss),
        grad_norm=torch.tensor(norm),
    )
    guard.add(done)
    guard.judge(is_alarmed, guard.own_loss() if is_asked else None)


def test_a_loss_that_stays_high_names_all_samples_since_it_was_not() -> None:
    guard = RankLossGuard(SpikeBound(num_recent=4, in_a_row=2))
    for step in range(1, 9):
        do(guard, step, 2.0 + 0.01 * (step % 3), is_asked=step % 2 == 0)
    do(guard, 9, 9.0, is_asked=False)
    do(guard, 10, 9.0)
    with pytest.raises(
        InvalidLoss, match=r"the loss is 9 at step 11 .* since after step 8 \(samples 32 to 43"
    ) as spike:
        do(guard, 11, 9.0)
    assert spike.value.bad_loss == BadLoss(step=11, good_step=8, samples=(32, 44))


def test_without_a_bound_a_high_loss_is_nobodys_business() -> None:
    guard = RankLossGuard(None)
    for step in range(1, 30):
        do(guard, step, 2.0 if step < 25 else 1e9)


def test_the_guard_tells_the_loss_that_it_looked_at_last() -> None:
    guard = RankLossGuard(None)
    seen = []
    for step in range(1, 4):
        do(guard, step, float(step), is_asked=False)
        seen.append(guard.checked_loss)
    assert seen == [None, 1.0, 2.0]
    assert guard.loss_before() == 2.0


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_is_not_finite_is_as_bad_as_a_loss() -> None:
    guard = RankLossGuard(None)
    do(guard, 1, 2.0)
    do(guard, 2, 2.0, is_asked=False, norm=float("inf"))
    with pytest.raises(InvalidLoss, match=r"the loss of step 2 or its gradient") as found:
        do(guard, 3, 2.0, is_asked=False)
    assert found.value.bad_loss == BadLoss(step=2, good_step=1, samples=(4, 8))
    with pytest.raises(InvalidLoss, match=r"the loss of step 1 or its gradient"):
        do(RankLossGuard(None), 1, 2.0, norm=float("nan"))


@pytest.mark.usefixtures("alone")
def test_a_step_that_went_wrong_is_known_at_the_next_one_to_whoever_asks_however_good_that_is() -> None:
    guard = RankLossGuard(None)
    do(guard, 1, float("nan"), is_asked=False)
    with pytest.raises(InvalidLoss, match=r"the loss of step 1 or its gradient"):
        do(guard, 2, 2.0, is_agreed=False)
