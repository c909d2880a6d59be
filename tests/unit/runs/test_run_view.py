"""What a long run says while it goes on, to people and to programs."""

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from math import inf, nan
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from checkpointing.saving.save import SaveNote
from jobs.run_progress.run_state import LastStep, Stage
from jobs.run_progress.run_view import RunDisplay
from jobs.training.task.events import (
    Checked,
    Ended,
    Evaluated,
    Progress,
    Replayed,
    Resumption,
    RunEvent,
    Warned,
    finite_or_none,
)
from jobs.training.task.stop_request import StopRequest
from tests.conftest import strict_json

BEGINNING = Resumption(step=0, generation=None, trail=("no generation yet: begins at step 0",))
RESUMED = Resumption(step=4, generation="g4", trail=("g6: passed over, torn", "g4: chosen, from the store"))
GOING_ON = Progress(
    step=5,
    num_steps=8,
    loss=2.34567,
    tokens_per_s=12_345.6,
    durable_step=None,
    durable_s=None,
    num_failed_saves=0,
    num_skipped_saves=0,
)
DIVERGED = Progress(
    step=5,
    num_steps=8,
    loss=finite_or_none(nan),
    tokens_per_s=10.0,
    durable_step=4,
    durable_s=0.0,
    num_failed_saves=3,
    num_skipped_saves=0,
)
SAVED = SaveNote(step=4, generation="g4", place="store", num_bytes=1_234_567, blocked_s=0.0123, took_s=1.5)
TORN = SaveNote(
    step=6, generation="g6", place="disk", num_bytes=0, blocked_s=0.0, took_s=0.0, problem="no space left"
)
END = Ended(step=8, loss=1.98766, generation="g8")


def display(*told: RunEvent, quiet: bool = False, silent: bool = False) -> RunDisplay:
    shown = RunDisplay("r", quiet=quiet, silent=silent)
    for one in told:
        shown.hear(one)
    return shown


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert printed.err == ""
    return [without_time(line) for line in printed.out.splitlines()]


def without_time(line: str) -> str:
    """The line without the time of day at its beginning, which each has."""
    assert re.match(r"\d\d:\d\d:\d\d r: ", line), line
    return line[9:]


def summary(capsys: pytest.CaptureFixture[str], *told: RunEvent, pointer: str | None = None) -> list[str]:
    shown = display(*told)
    capsys.readouterr()
    shown.summarise(pointer)
    return lines(capsys)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (BEGINNING, ["r: begins at step 0"]),
        (RESUMED, ["r: g6: passed over, torn", "r: g4: chosen, from the store", "r: goes on after step 4"]),
        (GOING_ON, ["r: step 5/8  loss 2.3457  12,346 tokens/s  nothing durable yet"]),
        (
            replace(GOING_ON, data_wait_share=0.4399),
            ["r: step 5/8  loss 2.3457  12,346 tokens/s  waiting for data 43%  nothing durable yet"],
        ),
        (
            replace(GOING_ON, data_wait_share=0.0499),
            ["r: step 5/8  loss 2.3457  12,346 tokens/s  nothing durable yet"],
        ),
        (Evaluated(step=6, val_loss=2.5), ["r: step 6: val_loss 2.5000"]),
        (Evaluated(step=6, val_loss=finite_or_none(inf)), ["r: step 6: val_loss not finite"]),
        (
            SAVED,
            ["r: save of step 4 to the store: 1.2 MB of rank 0, blocked for 0.012 s, done in 1.50 s"],
        ),
        (TORN, ["r: save of step 6 to the disk failed, training goes on: no space left"]),
        (Warned(text="careful"), ["r: warning: careful"]),
        (Replayed(step=3, text="as before", agrees=True), ["r: as before"]),
        (Replayed(step=3, text="otherwise", agrees=False), ["r: warning: otherwise"]),
        (Checked(step=0, num_ranks=3, is_first=True), ["r: step 0: 3 ranks compute alike"]),
        (Checked(step=200, num_ranks=3, is_first=False), []),
        (END, []),
    ],
)
def test_each_event_has_its_lines(
    told: RunEvent, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    display(told)
    assert lines(capsys) == expected


def test_programs_are_told_after_which_step_all_ranks_last_computed_alike() -> None:
    shown, records = RunDisplay("r", quiet=False, silent=False), list[Mapping[str, Any]]()
    shown.on_progress(records.append)
    shown.begins(1)
    assert "checked_step" not in records[-1]
    for step in (0, 200):
        shown.hear(Checked(step=step, num_ranks=3, is_first=step == 0))
    shown.begins(2)
    assert records[-1]["checked_step"] == 200


def test_progress_says_how_old_the_newest_durable_step_is_and_how_many_saves_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display(DIVERGED)
    [line] = lines(capsys)
    found = re.fullmatch(
        r"r: step 5/8  loss not finite  10 tokens/s  durable: step 4, (\d+) s ago  3 saves failed", line
    )
    assert found is not None, line
    assert 1e9 < int(found[1]) <= time.time() + 1


class Clock:
    """Goes on by what it is told, for both of a display's clocks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def step(number: int, **changes: Any) -> Progress:
    return replace(GOING_ON, step=number, num_steps=100, **changes)


def shown(clock: Clock) -> RunDisplay:
    return RunDisplay("r", quiet=False, silent=False, ticks=clock, clock=clock)


def test_a_line_comes_every_five_seconds_and_says_when_it_will_be_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    display = shown(clock)
    for number in range(1, 12):
        display.hear(step(number, durable_step=2, durable_s=990.0))
        clock.now += 1
    first, second, third = lines(capsys)
    assert first.endswith("12,346 tokens/s  durable: step 2, 10 s ago")
    assert second == "r: step 6/100  loss 2.3457  12,346 tokens/s  ETA 0:01:34  durable: step 2, 15 s ago"
    assert "step 11/100" in third and "ETA 0:01:29" in third


def test_the_age_of_the_work_at_risk_grows_while_nothing_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = shown(clock)
    display.hear(step(1, durable_step=1, durable_s=1000.0))
    clock.now += 300
    display.renew()
    assert lines(capsys)[1].endswith("durable: step 1, 300 s ago  no step for 0:05:00")


def test_steps_that_are_slow_as_usual_are_no_silence(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = shown(clock)
    for number in (1, 2, 3):
        display.hear(step(number))
        clock.now += 60
    clock.now += 100
    display.renew()
    clock.now += 60
    display.renew()
    *_, slow, silent = lines(capsys)
    assert "no step" not in slow
    assert silent.endswith("no step for 0:03:40")


@pytest.mark.parametrize("jump_s", [86_400.0, -3600.0])
def test_a_clock_that_is_set_makes_no_checkpoint_older_or_younger_than_it_is(
    jump_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks, wall = Clock(), Clock()
    display = RunDisplay("r", quiet=False, silent=False, ticks=ticks, clock=wall)
    display.hear(step(1, durable_step=1, durable_s=1000.0))
    ticks.now += 3
    wall.now += 3 + jump_s
    display.hear(step(2, durable_step=2, durable_s=1001.0))
    ticks.now += 10
    display.renew()
    expected = 13 if jump_s > 0 else 10
    assert lines(capsys)[-1].endswith(f"durable: step 2, {expected} s ago")


def test_what_comes_next_is_said_between_two_attempts(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = shown(clock)
    display.begins(1)
    display.hear(step(1))
    clock.now += 10
    display.waits(8.0, "rank 1: crash")
    clock.now += 8
    display.begins(2)
    clock.now += 5
    display.renew()
    display.hear(step(2))
    clock.now += 5
    display.hear(step(3))
    assert lines(capsys)[1:] == [
        "r: attempt 2 comes in 0:00:08: rank 1: crash",
        "r: attempt 2 has been starting for 0:00:05",
        "r: step 3/100  loss 2.3457  12,346 tokens/s  ETA 0:08:05  nothing durable yet  attempt 2",
    ]


def test_a_run_that_has_ended_has_no_status_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = shown(clock)
    display.hear(END)
    clock.now += 100
    display.renew()
    display.summarise(None)
    assert lines(capsys) == ["r: finished at step 8, loss 1.9877: g8"]


def test_a_loop_that_tells_no_loss_has_lines_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    display = RunDisplay("r", quiet=False, silent=False, has_loss=lambda: False)
    display.hear(DIVERGED)
    display.hear(replace(END, loss=None))
    display.summarise(None)
    step, end = lines(capsys)
    assert step.startswith("r: step 5/8  10 tokens/s  ")
    assert end == "r: finished at step 8: g8"


def test_that_an_attempt_is_starting_is_said_when_it_takes_some_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    display = shown(clock)
    display.begins(1)
    for _ in range(70):
        display.renew()
        clock.now += 1
    assert lines(capsys) == [
        "r: attempt 1 has been starting for 0:00:05",
        "r: attempt 1 has been starting for 0:01:05",
    ]


def test_before_it_has_a_lease_nobody_knows_which_attempt_comes_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    display = shown(clock)
    clock.now += 5
    display.renew()
    display.waits(8.0, "there is no node")
    assert lines(capsys) == [
        "r: starting for 0:00:05",
        "r: the next attempt comes in 0:00:08: there is no node",
    ]


def test_it_is_told_whether_the_run_is_this_drivers_yet() -> None:
    told: list[Mapping[str, Any]] = []
    display = RunDisplay("r", quiet=False, silent=False)
    display.on_progress(told.append)
    display.waits(8.0, "there is no node")
    display.begins(12)
    display.waits(1.0, "rank 1: crash")
    assert [(one["has_lease"], one.get("attempt")) for one in told] == [(False, None), (True, 12), (True, 12)]


def test_the_newest_step_is_the_attempts_own_and_has_an_age() -> None:
    clock = Clock()
    display = shown(clock)
    assert display.last_step() is None
    display.hear(step(7))
    clock.now += 4
    assert display.last_step() == LastStep(step=7, ago_s=4.0)
    display.begins(2)
    assert display.last_step() is None


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_the_line_is_renewed_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    clock, terminal = Clock(), Terminal()
    with redirect_stdout(terminal):
        display = shown(clock)
        display.hear(step(1))
        display.hear(Warned(text="careful"))
        clock.now += 1
        display.hear(step(2))
    erased = "\r\x1b[K"
    # One column less than there are, so that it never wraps.
    then, later = (time.strftime("%H:%M:%S", time.localtime(at_s)) for at_s in (1000.0, 1001.0))
    first, second = f"{then} r: step 1/100  loss ", f"{later} r: step 2/100  loss "
    assert terminal.getvalue() == (
        f"{erased}{first}{erased}{then} r: warning: careful\n{erased}{first}{erased}{second}"
    )


class Gone(StringIO):
    """The reader of this pipe has ended."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_terminal_that_is_gone_costs_a_run_its_lines_and_no_more() -> None:
    heard: list[Mapping[str, Any]] = []
    with redirect_stdout(Gone()):
        display = shown(Clock())
        display.on_progress(heard.append)
        display.hear(step(3))
        display.hear(SAVED)
        display.summarise(None)
    assert heard[-1]["step"] == 3


def test_an_output_that_nobody_reads_holds_up_no_run_and_goes_on_once_it_is_read() -> None:
    """A pager that waits for a key, a terminal behind a connection that hangs: whoever writes there waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    with os.fdopen(reader, "rb", 0) as read, os.fdopen(writer, "w", encoding="utf-8") as out:
        with redirect_stdout(out):
            view = display()
        noting = Thread(target=lambda: [view.note(f"line {number}") for number in range(100)], daemon=True)
        noting.start()
        noting.join(30)
        is_held_up = noting.is_alive()
        found = b""
        while b"line 0\n" not in found:
            found += read.read(1 << 16)
        for thread in enumerate_threads():
            if thread.name == "lines":
                thread.join(30)
        view.note("read again")
        while b"read again\n" not in found:
            found += read.read(1 << 16)
    assert not is_held_up
    assert b"line 99" not in found


def test_a_terminal_that_lacks_a_letter_costs_a_run_no_more_than_that_letter() -> None:
    terminal = TextIOWrapper(BytesIO(), encoding="ascii")
    with redirect_stdout(terminal):
        display().note("node J\u00e4ger is left out")
    assert terminal.buffer.getvalue()[9:] == b"r: node J\\xe4ger is left out\n"


def test_as_a_context_it_speaks_while_nothing_is_heard_and_tells_those_who_ask() -> None:
    heard: list[Mapping[str, Any]] = []
    with RunDisplay("r", quiet=False, silent=False) as display:
        display.on_progress(heard.append)
        deadline = time.monotonic() + 10
        while not heard:
            assert time.monotonic() < deadline, "nothing was told in time"
            time.sleep(0.01)
    assert heard[0]["stage"] == "starting"


@pytest.mark.parametrize(
    ("stage", "why"), [("stopped", "at step 4"), ("given up", "twice the same"), ("failed", "store away")]
)
def test_how_a_run_was_left_is_told_to_those_who_ask(stage: Stage, why: str) -> None:
    heard: list[Mapping[str, Any]] = []
    clock = Clock()
    display = shown(clock)
    display.on_progress(heard.append)
    display.hear(step(3))
    display.ends(stage, why)
    assert (heard[-1]["stage"], heard[-1]["why"], heard[-1]["step"]) == (stage, why, 3)
    assert heard[-1]["told_s"] == clock.now


@pytest.mark.parametrize(
    ("stop_request", "stage"),
    [
        (None, "finished"),
        (StopRequest(aim="stop", why="Ctrl-C"), "stopped"),
        (StopRequest(aim="move on", why="a drain"), "training"),
    ],
)
def test_an_attempt_that_ended_to_move_on_is_no_end_of_the_run(
    stop_request: StopRequest | None, stage: Stage
) -> None:
    heard: list[Mapping[str, Any]] = []
    display = shown(Clock())
    display.on_progress(heard.append)
    display.hear(step(3))
    display.hear(Ended(step=4, loss=1.0, generation=None, stop_request=stop_request))
    assert heard[-1]["stage"] == stage


@pytest.mark.parametrize(
    ("error", "stage", "why"),
    [(KeyboardInterrupt(), "interrupted", None), (OSError("no s3://me:hush@b\nmore"), "failed", "no s3://b")],
)
def test_an_exception_that_ends_a_run_is_told_as_how_it_was_left(
    error: BaseException, stage: Stage, why: str | None
) -> None:
    heard: list[Mapping[str, Any]] = []
    with pytest.raises(type(error)), RunDisplay("r", quiet=False, silent=False) as display:
        display.on_progress(heard.append)
        raise error
    assert (heard[-1]["stage"], heard[-1]["why"]) == (stage, why)


def test_a_run_that_was_given_up_stays_so_whatever_ends_its_driver() -> None:
    heard: list[Mapping[str, Any]] = []
    with pytest.raises(OSError), RunDisplay("r", quiet=False, silent=False) as display:
        display.on_progress(heard.append)
        display.ends("given up", "twice the same")
        raise OSError("the same")
    assert (heard[-1]["stage"], heard[-1]["why"]) == ("given up", "twice the same")


def test_until_when_a_run_waits_is_told_as_a_time_of_day() -> None:
    heard: list[Mapping[str, Any]] = []
    clock = Clock()
    display = shown(clock)
    display.on_progress(heard.append)
    display.waits(30.0, "no room")
    assert (heard[-1]["stage"], heard[-1]["retry_at_s"]) == ("waiting", 1030.0)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([BEGINNING, END], "r: finished at step 8, loss 1.9877: g8"),
        (
            [BEGINNING, Ended(step=8, loss=None, generation="g8")],
            "r: finished at step 8, loss not finite: g8",
        ),
        # Nothing was left to do, so there is no loss to speak of.
        ([RESUMED, Ended(step=4, loss=None, generation="g4")], "r: finished at step 4: g4"),
        (
            [BEGINNING, Ended(step=8, loss=2.0, generation=None, problem="the store is away")],
            "r: all 8 steps are done, but the store is away; there is no checkpoint; "
            "running it again goes on",
        ),
        ([BEGINNING], "r: the workers ended without a word of it; running it again goes on"),
    ],
)
def test_the_last_line_says_how_it_ended(
    told: list[RunEvent], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert summary(capsys, *told) == [expected]


ASKED = StopRequest(aim="stop", why="Ctrl-C")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (
            Ended(step=6, loss=2.0, generation="g6", stop_request=ASKED),
            "r: stopped at step 6 (g6), resume with `longhaul train spec.yaml`",
        ),
        (
            Ended(step=0, loss=None, generation=None, stop_request=ASKED),
            "r: stopped at step 0, with nothing to save, resume with `longhaul train spec.yaml`",
        ),
        (
            Ended(step=6, loss=2.0, generation="g4", stop_request=ASKED, problem="step 6 could not be saved"),
            "r: ended as asked, but step 6 could not be saved; the newest checkpoint is g4; "
            "running it again goes on",
        ),
    ],
)
def test_of_a_run_that_was_stopped_the_last_line_says_where_and_how_it_goes_on(
    end: Ended, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = display(BEGINNING, end)
    capsys.readouterr()
    shown.summarise("g4", "longhaul train spec.yaml")
    assert lines(capsys)[-1] == expected
    assert shown.is_durable is (end.problem is None)
    assert shown.facts()["stopped"] == "Ctrl-C"


def test_rays_pointer_is_named_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert summary(capsys, BEGINNING, END, pointer="g8") == [
        "r: Ray Train's own result names g8, for programs that read it",
        *summary(capsys, BEGINNING, END),
    ]


@pytest.mark.parametrize(
    ("told", "expected"),
    [([BEGINNING], False), ([END], True), ([Ended(step=8, loss=2.0, generation=None, problem="x")], False)],
)
def test_only_an_end_without_a_problem_is_durable(told: list[RunEvent], expected: bool) -> None:
    assert display(*told, silent=True).is_durable is expected


def test_the_facts_tell_a_program_where_it_began_what_was_saved_and_what_was_wrong() -> None:
    facts = strict_json(json.dumps(display(RESUMED, SAVED, TORN, END, silent=True).facts()))
    assert (facts["resumed_from"], facts["resumed_step"]) == ("g4", 4)
    assert facts["why"] == list(RESUMED.trail)
    assert [(save["step"], save["problem"]) for save in facts["saves"]] == [(4, None), (6, "no space left")]
    assert (facts["problem"], facts["stopped"]) == (None, None)
    assert display(RESUMED, silent=True).facts()["problem"] == "the workers ended early"


def test_where_standard_output_is_a_programs_people_read_the_other_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display(BEGINNING, GOING_ON, quiet=True).summarise(None)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 3


def test_who_is_silent_tells_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Mapping[str, Any]] = []
    shown = RunDisplay("r", quiet=False, silent=True)
    shown.on_progress(heard.append)
    for told in (BEGINNING, GOING_ON, SAVED, END):
        shown.hear(told)
    shown.summarise("g8")
    assert (lines(capsys), heard) == ([], [])


def progress_of(*told: RunEvent) -> list[Any]:
    """As the file for those who are not there has it."""
    heard: list[Mapping[str, Any]] = []
    shown = RunDisplay("r", quiet=False, silent=False)
    shown.on_progress(heard.append)
    for one in told:
        shown.hear(one)
    return [strict_json(json.dumps(status)) for status in heard]


def test_the_end_is_told_on_top_of_the_newest_progress() -> None:
    first, last = progress_of(BEGINNING, GOING_ON, END)
    assert (first["step"], first["loss"]) == (5, 2.34567)
    assert (last["step"], last["loss"], last["stage"]) == (8, 1.98766, "finished")
    assert last["num_steps"] == first["num_steps"] == 8


def test_a_loss_that_is_not_finite_is_told_as_null() -> None:
    told = progress_of(BEGINNING, DIVERGED, Ended(step=8, loss=finite_or_none(inf), generation="g8"))
    assert [status["loss"] for status in told] == [None, None]


def test_a_start_with_nothing_left_to_do_leaves_standing_what_was_told_before() -> None:
    assert progress_of(RESUMED, Ended(step=4, loss=None, generation="g4")) == []
