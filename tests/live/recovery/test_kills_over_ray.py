"""``kill -9`` of what makes up a kept run over Ray, a hundred times: it is the one left alone."""

import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import below, run, running, write_spec
from tests.live.recovery.test_kills import assert_the_time_adds_up, seed_of_this_time
from tests.live.runs.test_train import train_command, wait_until

NUM_KILLS = 100
EVERY_STEPS = 5
# It is stopped once all is killed that is to be, however fast this machine trains.
MOST_STEPS = 1_000_000
# By the last of them there is what the next attempt's workers are forked from.
KILL_AFTER_S = (0.0, 0.5, 1.0, 10.0)
# Of so many saved steps, on a machine that has other proofs to do beside.
END_S = 2400.0
RUN = f"""
name: r
model: llama-tiny
world_size: 2
seq_len: 32
steps: {MOST_STEPS}
data: {{samples: 1000}}
optimizer: {{warmup_steps: 5}}
checkpoint: {{every_steps: {EVERY_STEPS}, on_busy: wait, retention: {{last: 3, epochs: false}}}}
record: {{flush_s: 2, tensorboard: false}}
"""
# What Ray or we call a process, and how often it is chosen.
TITLES = {
    "a worker": ("RayTrainWorker", 6),
    "the controller": ("TrainController", 2),
    "a parent of spares": ("jobs.launch.forkserver.server", 1),
    "the driver": ("jobs.cli train", 1),
}


@pytest.mark.soak
@pytest.mark.longest
def test_a_kept_run_over_ray_whose_processes_are_killed_a_hundred_times_is_the_run_that_was_left_alone(
    tmp_path: Path,
) -> None:
    seed = seed_of_this_time()
    dice, killed = random.Random(seed), Counter[str]()
    spec = write_spec(tmp_path, RUN)
    store, told = tmp_path / "killed", tmp_path / "told.txt"
    with (
        told.open("w") as output,
        running(train_command(spec, store, "--keep"), output=output) as process,
    ):
        while killed.total() < NUM_KILLS:
            _wait_for_generations(process, store, dice.randint(0, 3))
            time.sleep(dice.choice(KILL_AFTER_S))
            (who,) = dice.choices(list(TITLES), weights=[weight for _, weight in TITLES.values()])
            victims = below(process.pid, TITLES[who][0])
            # None where that one is only being started.
            for victim in dice.sample(victims, k=min(len(victims), dice.randint(1, 2))):
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    killed[who] += 1
        _wait_for_generations(process, store, 1)
        process.terminate()
        process.wait(END_S)
    assert process.returncode == 0, f"seed {seed}: {told.read_text()[-3000:]}"
    num_steps = Repository(LocalStore(store), "r").refresh().stopped_step
    assert num_steps is not None
    alone = run(train_command(spec, tmp_path / "alone", "--set", f"steps={num_steps}"), deadline_s=END_S)
    assert alone.returncode == 0, alone.stderr
    ours, theirs = (newest_manifest(folder, "r") for folder in (store, tmp_path / "alone"))
    assert ours.cut.state["position"] == theirs.cut.state["position"]
    assert digests_of(ours) == digests_of(theirs), f"seed {seed}"
    assert_the_time_adds_up(store, num_steps=num_steps)
    num_attempts = Repository(LocalStore(store), "r").refresh().term
    # Two may be killed within one attempt.
    assert num_attempts > killed.total() / 3
    print(f"{dict(killed)} killed, {num_attempts} attempts, bit-equal at the end")


def _wait_for_generations(process: "subprocess.Popen[str]", store: Path, num_new: int) -> None:
    """One more each time: without that, nothing would count as getting on."""
    before = _newest(store)
    wait_until(lambda: process.poll() is not None or _newest(store) >= before + EVERY_STEPS * num_new, 300)
    assert process.poll() is None, "it ended before all was killed that was to be"


def _newest(store: Path) -> int:
    return max((one.step for one in Repository(LocalStore(store), "r").refresh().generations), default=0)
