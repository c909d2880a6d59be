"""A stop signal to every process of a training on this machine, Ray's and its workers' too.

A control group that is stopped sends it, and so does whoever ends all processes of a user.
"""

import json
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.live.command_line import DEADLINE_S, run, running, write_spec
from tests.live.control_groups import ControlGroup, control_group, why_not
from tests.live.runs.test_stopping import (
    RUN,
    command_of,
    is_training,
    status_of,
    stopped_step,
    view_of,
    wait_until,
)

NUMBERS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
GONE_AFTER_S = 60.0
SAVING_EACH_STEP = ("--set", "checkpoint.every_steps=1")


def all_of(pid: int) -> list[psutil.Process]:
    driver = psutil.Process(pid)
    return [driver, *driver.children(recursive=True)]


def send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def command_line_of(process: psutil.Process) -> str:
    """Empty if it has ended, also where nobody reaps it."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())[:120] if process.is_running() else ""
    return ""


def stop_everything_while(
    command: list[str], is_time: Callable[[], bool], number: signal.Signals, sent_to: list[str]
) -> str:
    """What the driver said. Its exit code is 0, and nothing is left of what it had started."""
    with running(command) as process:
        wait_until(is_time)
        found = all_of(process.pid)
        sent_to += [one.name() for one in found]
        send(number, found)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    # What was killed may be seen for a moment longer.
    wait_until(lambda: not any(map(command_line_of, found)), GONE_AFTER_S)
    return output


@pytest.mark.soak
@NUMBERS
def test_it_saves_and_ends_and_goes_on_whenever_all_are_asked(number: signal.Signals, tmp_path: Path) -> None:
    spec, store, sent_to = write_spec(tmp_path, RUN), tmp_path / "store", list[str]()
    command = command_of(spec, store)

    def is_starting() -> bool:
        return view_of(store, "r").term > 0

    output = stop_everything_while(command, is_starting, number, sent_to)
    assert output.splitlines()[-1][9:].startswith("r: stopped at step 0, with nothing to save, resume")

    output = stop_everything_while(command, is_training(store, beyond=1), number, sent_to)
    in_training = stopped_step(store, output)
    assert status_of(store)["stage"] == "stopped"

    saving = [*command, *SAVING_EACH_STEP]
    output = stop_everything_while(saving, is_training(store, beyond=in_training + 1), number, sent_to)
    in_saves = stopped_step(store, output)
    assert in_saves > in_training > 0
    assert {"raylet", "gcs_server"} < set(sent_to)

    last = run([*command, "--set", f"steps={in_saves + 2}", "--json"])
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["resumed_step"] == in_saves


@pytest.mark.soak
@NUMBERS
def test_all_may_be_asked_again_and_again_until_it_has_stopped(
    number: signal.Signals, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with running(command_of(write_spec(tmp_path, RUN), store, *SAVING_EACH_STEP)) as process:
        wait_until(is_training(store, beyond=1))
        found = all_of(process.pid)

        def has_stopped() -> bool:
            send(number, found)
            return status_of(store).get("stage") == "stopped"

        wait_until(has_stopped)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert stopped_step(store, output) > 0


@pytest.mark.soak
@NUMBERS
def test_a_supervisor_its_driver_and_all_processes_end_alike(number: signal.Signals, tmp_path: Path) -> None:
    store, sent_to = tmp_path / "store", list[str]()
    command = command_of(write_spec(tmp_path, RUN), store, "--keep")
    output = stop_everything_while(command, is_training(store), number, sent_to)
    assert stopped_step(store, output) > 0
    assert "raylet" in sent_to
    assert status_of(store)["stage"] == "stopped"


Moment = Callable[[ControlGroup, Path], bool]
# Whether to send again.
Send = Callable[[ControlGroup], bool]


def has(group: ControlGroup, name: str) -> bool:
    return any(one.startswith(name) for one in group.names())


def is_saving(store: Path) -> bool:
    """A rank's part is in the store, and the checkpoint that it belongs to is not."""
    newest = view_of(store, "r").generations[-1].name
    return any(place.name > newest for place in store.glob("runs/r/gen/*"))


MOMENTS: dict[str, Moment] = {
    "Ray starts": lambda group, _: has(group, "gcs_server"),
    "ranks start": lambda group, _: has(group, "ray::RayTrainWorker"),
    "training": lambda _, store: is_training(store, beyond=1)(),
    "saving": lambda _, store: is_training(store, beyond=1)() and is_saving(store),
}
FLAGS = {"driver": (), "supervisor": ("--keep",)}


def stop_group(moment: str, flags: Sequence[str], store: Path, send: Send) -> None:
    """A run whose group gets SIGTERM at ``moment``, once or on and on, ends with exit code 0.

    It has lost no step of which it told that it is durable, and nothing of it is left.
    """
    command = command_of(write_spec(store.parent, RUN), store, *SAVING_EACH_STEP, *flags)
    said = store.parent / "said"
    with control_group() as group:
        with said.open("w") as file, running(group.entered_by(command), output=file) as process:
            wait_until(lambda: MOMENTS[moment](group, store), every_s=0.002)
            assert has(group, "gcs_server")
            wait_until(lambda: not send(group) or not group.names(), every_s=0.1)
            process.wait(DEADLINE_S)
        output = said.read_text()
        assert process.returncode == 0, output
        assert "Traceback" not in output
        assert_stopped(store, output)
        wait_until(lambda: not group.names(), GONE_AFTER_S)


def assert_stopped(store: Path, output: str) -> None:
    told = [int(step) for step in re.findall(r" r: save of step ([0-9]+) to the store: ", output)]
    if view_of(store, "r").generations:
        assert stopped_step(store, output) >= max(told, default=0)
        return
    assert told == []
    assert output.splitlines()[-1][9:].startswith("r: stopped at step 0, with nothing to save, resume"), (
        output
    )


def once(group: ControlGroup) -> bool:
    group.send(signal.SIGTERM)
    return False


def on_and_on(group: ControlGroup) -> bool:
    group.send(signal.SIGTERM)
    return True


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    ("moment", "who"),
    [
        ("Ray starts", "driver"),
        *(
            pytest.param(moment, who, marks=pytest.mark.soak)
            for moment in MOMENTS
            for who in FLAGS
            if (moment, who) != ("Ray starts", "driver")
        ),
    ],
)
def test_a_control_group_that_is_stopped_loses_no_step_and_is_empty(
    moment: str, who: str, tmp_path: Path
) -> None:
    stop_group(moment, FLAGS[who], tmp_path / "store", once)


@pytest.mark.soak
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("who", FLAGS)
@pytest.mark.parametrize("moment", ["training", "saving"])
def test_a_control_group_may_be_asked_until_nothing_is_left_in_it(
    moment: str, who: str, tmp_path: Path
) -> None:
    """Not more often than ten times a second: for some 0.3 ms Ray's core leaves SIGTERM to the system."""
    stop_group(moment, FLAGS[who], tmp_path / "store", on_and_on)
