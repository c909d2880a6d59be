"""What an alarm sets off: a line, a record, the user's command; and that none of them costs the training."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.stores.local import LocalStore
from jobs.alerts.command import facts_of
from jobs.alerts.notifier import Notifier
from jobs.alerts.rules import Alarm, Alarms, Bounds, Ringing, Wanted
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.events import Progress
from jobs.training.task.task import Task
from reporting.long_runs.summarising import long_run
from tests.unit.results.test_recorder import AwayStore, rows

DEADLINE_S = 10.0
DIVERGED = Progress(
    step=7,
    num_steps=9,
    loss=None,
    tokens_per_s=1.0,
    durable_step=None,
    durable_s=None,
    num_failed_saves=0,
    num_skipped_saves=0,
)
WRITE_DOWN = """
import json, os, sys
told = {"stdin": json.load(sys.stdin), "argv": sys.argv[2:]}
told["env"] = {name: value for name, value in os.environ.items() if name.startswith("LONGHAUL_ALARM")}
open(sys.argv[1] + ".new", "w").write(json.dumps(told))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


def task_in(store: str) -> Task:
    recipe = RunSpec(name="r", model="llama-tiny", steps=9).recipe()
    return Task(
        run="r",
        store=store,
        recipe=recipe,
        vendor="cpu",
        simulated=False,
        num_steps=9,
        num_samples=64,
        saving=None,
        term=3,
        attempt="word",
        lineage="line",
        resume="latest",
    )


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return task_in(str(tmp_path / "store"))


def words(task: Task) -> IncidentOutbox:
    return IncidentOutbox(task.open_store())


def bell_of(
    task: Task, words: IncidentOutbox, say: Callable[[str], None], ring: Ringing | None = None
) -> Notifier:
    alarms = Alarms(Bounds(min_interval_s=0.0), Wanted(every_s=60.0, every_steps=None))
    return Notifier(alarms, ring, words, say, run=task.run, store=task.store, newest_term=task.term - 1)


def wait(is_so: Callable[[], bool], said: list[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"it did not happen in time: {said}"
        time.sleep(0.01)


def ringing(task: Task, ring: Ringing | None, until: Callable[[list[str]], bool]) -> list[str]:
    """The lines that are said of a loss that is not finite."""
    said: list[str] = []
    with bell_of(task, words(task), said.append, ring) as bell:
        bell.begins(task)
        bell.hear(DIVERGED)
        wait(lambda: until(said), said)
    return said


def python(*words: str, timeout_s: float = DEADLINE_S) -> Ringing:
    return Ringing(command=(sys.executable, "-S", "-c", *words), timeout_s=timeout_s)


def test_an_alarm_is_a_line_and_an_incident_of_its_attempt(task: Task, tmp_path: Path) -> None:
    said = ringing(task, None, lambda said: len(said) == 1)
    assert said == ["alarm: loss not finite: the loss of step 7 is not finite"]
    found = long_run(LocalStore(tmp_path / "store"), "r")
    assert found is not None
    [(_, kind, text)] = found.incidents
    assert (kind, text) == ("alarm", "attempt 3, step 7, loss not finite: the loss of step 7 is not finite")


def test_the_command_gets_the_facts_on_its_input_and_in_variables_and_not_as_words(
    task: Task, tmp_path: Path
) -> None:
    told = tmp_path / "told.json"
    said = ringing(task, python(WRITE_DOWN, str(told), "$HOME; true"), lambda _: told.exists())
    assert len(said) == 1
    found = json.loads(told.read_text())
    about = {"run": "r", "attempt": 3, "step": 7, "kind": "loss not finite"}
    assert {name: found["stdin"][name] for name in about} == about
    assert found["stdin"]["text"] == "the loss of step 7 is not finite"
    assert found["argv"] == ["$HOME; true"]
    assert found["env"]["LONGHAUL_ALARM_KIND"] == "loss not finite"
    assert found["env"]["LONGHAUL_ALARM_STEP"] == "7"


def test_whoever_is_called_need_not_wait_for_the_store(task: Task, tmp_path: Path) -> None:
    told, look = tmp_path / "told", "import os, sys; os.mkdir(sys.argv[1] + str(os.path.exists(sys.argv[2])))"
    names = [told, tmp_path / "store"]
    ringing(task, python(look, *map(str, names)), lambda _: any(tmp_path.glob("told*")))
    assert [path.name for path in tmp_path.glob("told*")] == ["toldFalse"]
    assert long_run(LocalStore(tmp_path / "store"), "r") is not None


def test_a_stores_credentials_are_not_told() -> None:
    alarm = Alarm(kind="straggler", text="rank 1", step=2, facts={"rank": 1})
    found = facts_of(alarm, run="r", store="s3://me:hush@host/bucket?secret=hush", attempt=1, at_s=5.0)
    assert found["store"] == "s3://host/bucket"
    assert found["facts"] == {"rank": 1}


@pytest.mark.parametrize(
    ("ring", "line"),
    [
        (python("import sys; sys.exit('no route')"), "alarm: its command ended with 1: no route"),
        (Ringing(command=("/no/such/command",), timeout_s=1.0), "alarm: its command can't be run: No such"),
        (python("input(); input()", timeout_s=9.0), "alarm: its command ended with 1: EOFError"),
    ],
)
def test_a_command_that_fails_is_said_and_costs_nothing(task: Task, ring: Ringing, line: str) -> None:
    said = ringing(task, ring, lambda said: len(said) == 2)
    assert said[1].startswith(line)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(task: Task, tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']); "
        f"open({str(child)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    said = ringing(task, python(program, timeout_s=5.0), lambda said: len(said) == 2)
    assert said[1] == "alarm: its command was ended after 5 s"
    pid = int(child.read_text())
    deadline = time.monotonic() + DEADLINE_S
    while _runs(pid):
        assert time.monotonic() < deadline, "what the command started goes on"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_store_that_is_not_there_keeps_nobody_from_being_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    told = tmp_path / "told.json"
    away = task_in(str(file / "store"))
    said = ringing(away, python(WRITE_DOWN, str(told)), lambda _: told.exists())
    assert len(said) == 1


def test_more_alarms_than_can_be_carried_out_are_still_said(task: Task) -> None:
    said: list[str] = []
    bell = bell_of(task, words(task), said.append)
    bell.begins(task)
    for _ in range(20):
        bell.failed("invalid loss", "bad")
        bell.begins(task)
    assert said.count("alarm: loss spike: bad") == 20
    assert "alarm: the last ones are still under way, so this one is only said" in said


def test_an_attempt_that_ended_because_a_device_computes_wrongly_raises_an_alarm(task: Task) -> None:
    said: list[str] = []
    bell = bell_of(task, words(task), said.append)
    bell.begins(task)
    bell.failed("corruption", "rank 1 computes other gradients")
    assert said == ["alarm: silent corruption: rank 1 computes other gradients"]


def test_an_attempt_that_failed_for_another_reason_raises_no_alarm(task: Task) -> None:
    said: list[str] = []
    bell = bell_of(task, words(task), said.append)
    bell.begins(task)
    bell.failed("worker died", "rank 1: SIGKILL")
    assert said == []


def test_an_alarm_that_can_not_be_carried_out_keeps_the_next_one_from_nothing(
    task: Task, tmp_path: Path
) -> None:
    said: list[str] = []
    told = tmp_path / "told.json"
    with bell_of(task, words(task), said.append, python(WRITE_DOWN, str(told))) as bell:
        bell.begins(task)
        bell.failed("invalid loss", "no variable holds \0")
        bell.begins(task)
        bell.failed("invalid loss", "s3://me:hush@b went wrong")
        wait(told.exists, said)
    assert "alarm: its command can't be told: embedded null byte" in said
    assert json.loads(told.read_text())["stdin"]["text"] == "s3://b went wrong"


def test_a_driver_that_gives_up_before_an_attempt_of_its_own_calls_the_command_all_the_same(
    task: Task, tmp_path: Path
) -> None:
    """Such as one that a supervisor started, and that found no room: the attempt is the newest there was."""
    said: list[str] = []
    told = tmp_path / "told.json"
    with bell_of(task, words(task), said.append, python(WRITE_DOWN, str(told))) as bell:
        bell.given_up("no progress: no room")
        wait(told.exists, said)
    found = json.loads(told.read_text())["stdin"]
    about = {"run": "r", "store": task.store, "attempt": 2, "kind": "given up"}
    assert {name: found[name] for name in about} == about
    assert long_run(LocalStore(tmp_path / "store"), "r") is None


def test_variables_of_the_driver_are_the_commands_too(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a command's own secrets belong."""
    monkeypatch.setenv("PAGER_TOKEN", "hush")
    told = tmp_path / "told"
    program = "import os, sys; open(sys.argv[1], 'w').write(os.environ['PAGER_TOKEN'])"
    ringing(task, python(program, str(told)), lambda _: told.exists() and told.read_text() != "")
    assert told.read_text() == os.environ["PAGER_TOKEN"]


def test_an_alarm_that_the_store_did_not_take_is_in_the_report_once_it_is_back(task: Task) -> None:
    """Such as that on stale checkpoints, which tells of the store."""
    store = AwayStore()
    store.is_away = True
    with IncidentOutbox(store) as words:
        with bell_of(task, words, lambda _: None) as bell:
            bell.begins(task)
            bell.hear(DIVERGED)
            rung_s = time.time()
        store.is_away = False
    (row,) = rows(store, "incidents")
    assert (row["term"], row["kind"]) == (3, "alarm")
    assert row["happened_s"] == pytest.approx(rung_s, abs=DEADLINE_S / 2)
