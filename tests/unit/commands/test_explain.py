"""``longhaul explain``: each word that the code can say has a text, and a word that is none a hint."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from cluster.promised_vs_live import NodeFindingKind
from jobs.alerts.rules import AlarmKind
from jobs.cli.__main__ import main
from jobs.commandline import exit_codes
from jobs.execution.causes import Cause
from jobs.explaining.answers import EXIT_CODES, VERDICTS
from jobs.explaining.cells import STATUSES
from jobs.explaining.entry import find
from jobs.explaining.findings import CHECKS, NODES
from jobs.explaining.glossary import glossary
from jobs.explaining.trainings import ALARMS, CAUSES, INCIDENTS, STAGES, TIMES
from jobs.run_progress.run_state import Stage
from jobs.sweeps.rows.metrics import METRICS
from jobs.training.task.measurement import Status
from reporting.analysis.findings import PriceVerdict, Verdict
from reporting.long_runs.ledger import PHASES
from reporting.recording.attempts import IncidentKind
from reporting.results.columns import TABLES

ROOT = Path(__file__).parents[3]
# As their source names them: they have no list of their own.
OF_REPORTS = re.findall(
    r'(?:name=|_CAPPED = )"([^"]+)"', (ROOT / "reporting/analysis/checks.py").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    ("explained", "said"),
    [
        (STATUSES, get_args(Status)),
        (STAGES, (*get_args(Stage), "silent", "not finished")),
        (INCIDENTS, get_args(IncidentKind)),
        (ALARMS, get_args(AlarmKind)),
        (CAUSES, get_args(Cause)),
        (TIMES, ("goodput", *PHASES)),
        (NODES, get_args(NodeFindingKind)),
        (CHECKS, OF_REPORTS),
        (VERDICTS, (*get_args(Verdict), *get_args(PriceVerdict))),
        (EXIT_CODES, [code for name, code in vars(exit_codes).items() if name.startswith("EXIT_")]),
    ],
    ids=[
        "cells",
        "stages",
        "incidents",
        "alarms",
        "causes",
        "times",
        "nodes",
        "checks",
        "verdicts",
        "exit codes",
    ],
)
def test_everything_that_can_be_said_has_a_text_and_nothing_else(
    explained: Iterable[object], said: Iterable[object]
) -> None:
    assert {*said}
    assert {*explained} == {*said}


def test_every_column_and_metric_is_explained() -> None:
    known = glossary()
    for name in (*(column.name for columns in TABLES.values() for column in columns), *METRICS):
        assert find(name, known), name


def test_a_text_is_a_sentence() -> None:
    for entry in glossary():
        assert entry.meaning.strip().endswith("."), entry.word
        assert not entry.advice or entry.advice.endswith((".", "?")), entry.word


@pytest.mark.parametrize(
    "words", [["oom"], ["OOM"], ["given", "up"], ["given_up"], ["exit", "code", "3"], ["3"], ["mfu"]]
)
def test_a_word_is_explained_however_it_is_written(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_a_word_of_two_meanings_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hang"]) == 0
    out = capsys.readouterr().out
    assert "hang: status of a cell" in out
    assert "hang: cause of a failed attempt" in out


def test_without_a_word_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert "invalid_loss" in out
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("unschedulabel", "did you mean 'unschedulable'"),
        ("stragler", "did you mean 'straggler' or 'stragglers'"),
        ("qqqq", "`longhaul explain` lists all"),
        ("\x1b[2J", "nothing is called"),
        ("x" * 100_000, "nothing is called"),
        ("\udcff", "nothing is called"),
        ("--", "`longhaul explain` lists all"),
        ("../../etc/passwd", "nothing is called"),
    ],
)
def test_rubbish_is_one_line(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--", word]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert len(printed.err) < 300
    assert says in printed.err
    assert "\x1b" not in printed.err
