"""An epoch's end gets into the store, whatever its run comes back from: real ranks fall while it is on its
way there.
"""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from checkpointing.format.manifest import Cut
from checkpointing.generations.repository import Repository
from checkpointing.saving.publishing.publisher import Publisher
from checkpointing.stores.local import LocalStore
from jobs.training.loop.control import Agreed
from jobs.training.loop.step_boundary import StepBoundary
from jobs.training.task.position import StepPoint
from tests.live.attempts import Story, Wanted, attempt, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.saves.test_memory_tier import ALONE, NUM_RANKS, SOAK, WHOLE, undisturbed, wanted_in, went_on

# Of 24 samples, of which each step has six: the last step is an epoch's end too.
END = 4


def attempt_whose_epochs_end_stands_still(wanted: Wanted, is_committed: bool) -> Story:
    """All ranks fall at ``falls_at``, or ``fallen_rank`` alone, when memory has what it gets of that step."""
    at, alone = wanted.falls_at, wanted.fallen_rank
    commit, cross, commits = Publisher._commit, StepBoundary.cross, threading.Event()

    def never(publisher: Publisher, cut: Cut) -> None:
        if is_committed:
            commit(publisher, cut)
            commits.set()
        threading.Event().wait()

    def fall(boundary: StepBoundary, point: StepPoint, agreed: Agreed, loss: float) -> StepPoint:
        done = cross(boundary, point, agreed, loss)
        while boundary.own_busy().memory:
            threading.Event().wait(0.01)
        if point.step == at:
            if is_committed and dist.get_rank() == 0:
                commits.wait()
            dist.barrier()
            if alone in (None, dist.get_rank()):
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "_commit", never)
        patch.setattr(StepBoundary, "cross", fall)
        return attempt(replace(wanted, falls_at=None, fallen_rank=None))


def ends_in(wanted: Wanted) -> list[tuple[int, int, bool]]:
    """Of each epoch's end that the store has for good: the number, the step, and whether it was evaluated."""
    view = Repository(LocalStore(wanted.store), wanted.name).refresh()
    ends = [one for one in view.generations if one.is_good]
    return [(one.epoch_end, one.step, "val_loss" in one.metrics) for one in ends if one.epoch_end]


@pytest.mark.parametrize(
    ("falls_at", "fallen_rank", "is_committed"),
    [
        pytest.param(END, None, False, id="at it", marks=SOAK),
        pytest.param(END, None, True, id="at it, committed and not verified", marks=SOAK),
        pytest.param(END + 2, None, False, id="behind it"),
        pytest.param(END, 1, False, id="at it, and the others leave their last state", marks=SOAK),
        pytest.param(END + 1, 1, False, id="behind it, and the others could leave their last state"),
    ],
)
def test_an_epochs_end_that_was_on_its_way_to_the_store_gets_there(
    tmp_path: Path, falls_at: int, fallen_rank: int | None, is_committed: bool
) -> None:
    # In each step but one memory is busy with the one before.
    wanted = wanted_in(tmp_path, "ddp", draws=False, memory_every=2, eval_every=END)
    falling = replace(wanted, falls_at=falls_at, fallen_rank=fallen_rank)
    with pytest.raises(RankFailed):
        run_ranks(
            attempt_whose_epochs_end_stands_still,
            falling,
            is_committed,
            num_ranks=NUM_RANKS,
            tmp_path=tmp_path,
        )
    assert ends_in(wanted) == []
    story = went_on(tmp_path, wanted)
    assert story.start.step == END
    assert story.start.trail[-1].endswith("from the hosts' memory" if is_committed else ALONE)
    assert ends_in(wanted) == [(1, END, True), (2, WHOLE, True)]
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))
