"""Processes that are forked from one that has loaded everything use the device as others do."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from jobs.training.preload import touched_device
from jobs.training.task.job import Strategy
from tests.gpu.apart import apart
from tests.gpu.conftest import Say
from tests.gpu.here import DEVICE
from tests.gpu.test_commands import RUN
from tests.gpu.trainings import plain, train_each
from tests.live.attempts import newest_manifest
from tests.live.command_line import running as running_command
from tests.live.command_line import write_spec
from tests.live.recovery.test_forkserver import a_parent, start
from tests.live.recovery.test_recovering import PARENT, await_one
from tests.live.runs.test_train import a_worker_of, train_command, wait_until

pytestmark = pytest.mark.gpu

DEADLINE_S = 240
# Long enough that another attempt is prepared for.
LONG_RUN = RUN.replace("steps: 1000", "steps: 1000000").replace(
    "pause_s: 0.1", "pause_s: 0.1, spares: devices"
)
TRAINS = """
import json, os, sys
sys.path[0] = {root!r}
from tests.gpu.apart import only_rank
from tests.gpu.here import DEVICE
from tests.gpu.trainings import plain, train

with only_rank(DEVICE):
    course = train(plain({strategy!r}, "bf16"), DEVICE)
print(json.dumps({{"losses": course.losses, "parent": os.getppid()}}), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero3"])
def test_a_forked_process_trains_on_the_device_as_a_new_one(
    strategy: Strategy, tmp_path: Path, seen: Say
) -> None:
    (usual,) = apart(train_each, [plain(strategy, "bf16")], device=DEVICE)
    script = TRAINS.format(root=str(Path(__file__).parents[2]), strategy=strategy)
    with a_parent(tmp_path, strategy, DS_ACCELERATOR="cuda") as parent:
        with start(tmp_path, script=script, environment=dict(os.environ)) as asking:
            output, errors = asking.communicate(timeout=DEADLINE_S)
        held = touched_device(Path(f"/proc/{parent.pid}/fd"))
    told = json.loads(output.splitlines()[-1]) if output.strip() else {}
    assert told.get("parent") == parent.pid, errors
    distance = max(abs(one - other) for one, other in zip(told["losses"], usual.losses, strict=True))
    seen(f"losses within {distance:.1e} of a new process's; the process that forks holds no device")
    assert held is None
    assert distance <= 0.05


def test_a_run_with_spares_goes_on_in_a_forked_worker(tmp_path: Path, seen: Say) -> None:
    spec, store = write_spec(tmp_path, LONG_RUN), tmp_path / "store"
    with running_command(train_command(spec, store)) as process:
        parent = await_one(process, PARENT)
        wait_until(lambda: _is_ready(parent), DEADLINE_S)
        os.kill(a_worker_of(process).pid, signal.SIGKILL)
        wait_until(lambda: newest_manifest(store, "r").cut.term == 2, DEADLINE_S)
        second = a_worker_of(process)
        held, forked_from = touched_device(Path(f"/proc/{parent.pid}/fd")), second.ppid()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert forked_from == parent.pid, output
    seen(f"worker {second.pid} was forked from {parent.pid}, which holds no device")
    assert held is None


def _is_ready(parent: psutil.Process) -> bool:
    """Its socket is the word before the strategy."""
    return Path(parent.cmdline()[-2]).is_socket()
