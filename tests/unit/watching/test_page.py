"""The page of a run and of a sweep: all that is known, and nothing that a name in the store could add."""

import json
import re

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.watching import page
from jobs.watching.choosing import Watched
from jobs.watching.snapshot import Snapshot, as_data
from jobs.watching.terminal import lines
from tests.unit.pages import read
from tests.unit.printed import checked
from tests.unit.watching.watched import HOSTILE, put_run, put_sweep, run_snapshot, snapshot, sweep_snapshot


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    put_run(store)
    put_sweep(store)
    return store


def facts_of(found: Snapshot) -> dict[str, str]:
    shown = read(page.live(found))
    assert shown.problems == []
    terms, texts = shown.within("now", "dt"), shown.within("now", "dd")
    return {term.shown: text.shown for term, text in zip(terms, texts, strict=True)}


def test_a_runs_figures_are_those_of_its_status(store: MemoryStore) -> None:
    facts = facts_of(run_snapshot(store))
    assert facts["Step"] == "35 of 40"
    assert facts["Loss"] == "1.500"
    assert facts["Steps at risk"] == "15"
    assert facts["Restarts"] == "2"
    assert read(page.live(run_snapshot(store))).named("h1")[0].shown == "r training"


def test_a_watcher_sees_that_a_run_waits_for_data_while_it_trains() -> None:
    trains, waits = MemoryStore(), MemoryStore()
    put_run(trains, data_wait_share=0.43)
    found = run_snapshot(trains)
    assert facts_of(found)["Waiting for data"] == "43.0 %"
    assert any("waiting for data 43.0 %" in line for line in lines(found))
    put_run(waits, data_wait_share=0.43, stage="waiting")
    found = run_snapshot(waits)
    assert facts_of(found)["Waiting for data"] == "–"
    assert not any("waiting for data" in line for line in lines(found))


def test_a_group_that_is_not_the_only_one_of_a_machine_is_named() -> None:
    alone, one_of_two = MemoryStore(), MemoryStore()
    put_run(alone, group="local")
    assert "Group" not in facts_of(run_snapshot(alone))
    put_run(one_of_two, group="amd")
    found = run_snapshot(one_of_two)
    assert facts_of(found)["Group"] == "amd"
    assert any("attempt 1 in group amd" in line for line in lines(found))


def test_a_runs_page_says_where_the_time_went_and_what_each_restart_cost(store: MemoryStore) -> None:
    shown = read(page.live(run_snapshot(store)))
    assert [text for _, text in shown.headings][1:] == [
        "Now",
        "Where the time went",
        "Restarts",
        "What happened",
    ]
    assert "phase-productive" in page.live(run_snapshot(store))


def test_a_sweeps_figures_are_done_failed_running_and_an_estimate(store: MemoryStore) -> None:
    facts = facts_of(sweep_snapshot(store))
    assert facts == {
        "Done by this start": "1 of 2",
        "Failed of these": "0",
        "Running": "1",
        "Elapsed": "0:00:10",
        "Remaining": "0:00:10",
        "Results in the store": "1 of 2",
        "Failed results": "0",
    }
    assert "another: warmup step 1/5" in page.live(sweep_snapshot(store))


def test_what_somebody_wrote_into_the_store_becomes_neither_markup_nor_a_terminals_command() -> None:
    store = MemoryStore()
    put_run(store, why=HOSTILE, stage=HOSTILE, group=HOSTILE)
    put_sweep(store, running=[HOSTILE] * 100)
    for found in (run_snapshot(store), sweep_snapshot(store)):
        shown = page.live(found)
        assert "<script" not in shown
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", shown)
        assert all(line.isprintable() and len(line) <= 300 for line in lines(found))
        assert read(shown).problems == []


def test_no_element_has_what_the_policy_forbids(store: MemoryStore) -> None:
    for shown in (page.frame(), page.live(run_snapshot(store)), page.live(sweep_snapshot(store))):
        assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", shown)
        assert "<style" not in shown
        assert not re.search(r"<script(?! src=\"/watch.js\")", shown)
    assert "unsafe" not in page.POLICY


def test_the_frame_has_no_figure_and_no_name(store: MemoryStore) -> None:
    assert "results" not in page.frame()
    assert page.frame() == page.frame()


def test_a_store_that_is_away_is_said_with_the_age_of_the_figures(store: MemoryStore) -> None:
    away = run_snapshot(store, problem="store: it does not answer", age_s=42.0)
    said = read(page.live(away)).by_id("troubles").shown
    assert said == "The store can't be read now: store: it does not answer These figures are 42 s old."
    hangs = run_snapshot(store, silent_s=9.0, age_s=10.0)
    assert "has not answered for 9 s" in read(page.live(hangs)).by_id("troubles").shown
    assert "troubles" not in page.live(run_snapshot(store))


def test_before_the_first_answer_the_page_says_that_there_is_none() -> None:
    nothing = snapshot(Watched(kind="run", name="r"), None, None, age_s=None)
    assert "has not answered yet" in page.live(nothing)


def test_a_snapshot_is_json_for_every_program(store: MemoryStore) -> None:
    for found in (run_snapshot(store), sweep_snapshot(store)):
        told = as_data(found)
        assert checked("watch", json.dumps(told)) == told
        assert told["problems"] == []


@pytest.mark.parametrize(
    "told", [{"num_done": "x"}, {"running": {"a": 1}}, {"running": [1, None]}, {"told_s": 1e999}]
)
def test_a_sweeps_progress_of_another_type_is_left_out(told: dict[str, object]) -> None:
    store = MemoryStore()
    put_sweep(store, **told)
    assert page.live(sweep_snapshot(store))
    assert lines(sweep_snapshot(store))
