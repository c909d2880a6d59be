"""A rank is killed, or stands still: the others leave their last state, and no finished step is lost."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.live.command_line import running, write_spec
from tests.live.recovery.test_recovering import PATIENCE_S, finished_as_if_left_alone
from tests.live.runs.test_stopping import is_training
from tests.live.runs.test_train import a_worker_of, num_commits, train_command, wait_until

# Of what is kept in memory by the way there is nothing before the end.
RUN = """
name: r
model: llama-tiny
strategy: ddp
world_size: 2
seq_len: 32
steps: 300
data: {samples: 100000}
checkpoint: {every_steps: 100, on_busy: wait, memory: {every_steps: 100000}, retention: {epochs: false}}
limits: {schedule_timeout_s: 60, hang_timeout_s: 15}
recovery: {pause_s: 0.1}
"""


@pytest.mark.parametrize(
    "what_happens",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.soak),
    ],
)
def test_a_lost_rank_costs_the_step_that_was_interrupted(
    what_happens: signal.Signals, tmp_path: Path
) -> None:
    spec, store, told = write_spec(tmp_path, RUN), tmp_path / "store", tmp_path / "told.txt"
    with told.open("w") as output, running(train_command(spec, store), output=output) as process:
        wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
        # Some steps behind what the store has. Its lines come more seldom than a hundred steps may take.
        wait_until(is_training(store, beyond=100), PATIENCE_S)
        os.kill(a_worker_of(process).pid, what_happens)
        process.wait(PATIENCE_S)
    text = told.read_text()
    assert process.returncode == 0, text
    came_from = re.search(r"(\d+)-t1-\w+\.1000000000: chosen, in the hosts' memory alone", text)
    assert came_from, text
    assert int(came_from[1]) > 100
    assert finished_as_if_left_alone(tmp_path, spec, store)
