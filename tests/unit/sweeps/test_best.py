"""``--best``: which measurements it takes, what it decides, and that a kill at any moment costs nothing."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import SpecError
from jobs.execution.messages import Finished, Started
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.bookkeeper import Bookkeeper
from jobs.sweeps.grid import Cell, Run, schedule
from jobs.sweeps.results import Results
from jobs.sweeps.search.best import BestSearch, Search
from jobs.sweeps.search.best_table import best_table, rounds_text
from jobs.sweeps.search.decision import cost_of, document
from jobs.sweeps.search.halving import FINALISTS, expected_rounds, rung_window, short_cells
from jobs.sweeps.search.questions import questions_of
from jobs.training.task.job import Window
from jobs.training.task.measurement import Failure, Measurement
from tests.conftest import Golden
from tests.unit.builders import cells_of, measurement, plans_of, sweep
from tests.unit.printed import checked
from tests.unit.sweeps.test_bookkeeper import Heard

TWELVE = sweep(
    axes={
        "strategy": ["ddp", "fsdp"],
        "micro_batch": [1, 2, 4],
        "cross_entropy": ["whole", "chunked"],
    },
    global_batch=8,
    measure={"steps": 40, "warmup": 4},
    repeats=4,
)


@dataclass
class Machine:
    """Steps take what ``step_s`` says of a cell; ``breaks`` run out of memory."""

    spec: SweepSpec = TWELVE
    speeds: dict[str, float] = field(default_factory=dict)
    breaks: set[str] = field(default_factory=set)
    store: MemoryStore = field(default_factory=MemoryStore)
    measured: list[Run] = field(default_factory=list)

    def open(self, *, retry_failed: bool = False) -> BestSearch:
        search = Search.of(self.spec, questions_of(self.spec, cells_of(self.spec)), plans_of(self.spec))
        results = Results(self.store, self.spec.name)
        self.search = search
        self.book = Bookkeeper(self.spec, results, results.load(), search.runs, search.plans)
        return BestSearch(search, self.book, retry_failed=retry_failed)

    def go(self, num_runs: int | None = None, *, retry_failed: bool = False) -> BestSearch:
        """One start, which is killed after ``num_runs`` runs."""
        best = self.open(retry_failed=retry_failed)
        for wave in best.waves(self.search.questions):
            for run in wave:
                if num_runs == 0:
                    return best
                num_runs = None if num_runs is None else num_runs - 1
                self.measure(run)
        return best

    def told(self) -> dict[str, Any]:
        decisions = self.open().decisions()
        return document(self.spec, decisions, cost_of(self.spec, decisions))

    def table(self) -> str:
        decisions = self.open().decisions()
        return best_table(decisions, cost_of(self.spec, decisions))

    def measure(self, run: Run) -> None:
        self.measured.append(run)
        self.book.listen(Started(run_id=run.run_id), Heard())
        self.book.listen(Finished(run_id=run.run_id, outcome=self._outcome(run)), Heard())

    def _outcome(self, run: Run) -> Measurement | Failure:
        name = name_of(run.cell)
        if name in self.breaks:
            return Failure(status="oom", reason="RuntimeError: too much", phase="warmup")
        step_s = self.speeds.get(name, 1.0) * (1 + 0.001 * run.repeat)
        return measurement(run.run_id, step_s=step_s, num_steps=run.cell.window.steps)


def name_of(cell: Cell) -> str:
    recipe = cell.recipe
    return f"{recipe.strategy} {recipe.micro_batch} {recipe.cross_entropy}"


def graded() -> dict[str, float]:
    """Each cell is a tenth slower than the one before; the last is the fastest."""
    return {name_of(cell): 1.1**place for place, cell in enumerate(reversed(cells_of(TWELVE)))}


def test_the_best_is_found_with_few_runs_and_named_with_the_second() -> None:
    machine = Machine(speeds=graded())
    machine.go()
    (question,) = machine.told()["questions"]
    assert question["is_decided"]
    assert question["best"]["settings"] == {
        "strategy": "fsdp", "micro_batch": 4, "activation_checkpointing": "none", "cross_entropy": "chunked",
        "compile": "none", "attention": "auto",
    } | question["best"]["settings"]  # fmt: skip
    second = question["others"][0]
    assert (second["settings"]["cross_entropy"], second["verdict"], second["is_tied"]) == (
        "whole", "slower", False,
    )  # fmt: skip
    assert second["ratio"] == pytest.approx(1 / 1.1, rel=0.01)
    assert len(machine.measured) == 12 + 6 + 3 * 4
    assert [run.cell.window.steps for run in machine.measured[:18]] == [5] * 12 + [10] * 6
    cost = machine.told()["cost"]
    assert (cost["num_runs"], cost["grid_runs"]) == (30, 48)
    assert cost["num_steps"] < cost["grid_steps"] / 2


def test_a_kill_after_any_run_changes_nothing_and_no_run_is_measured_twice() -> None:
    whole = Machine(speeds=graded(), breaks={"ddp 4 whole"})
    whole.go()
    for num_runs in range(len(whole.measured)):
        killed = Machine(speeds=graded(), breaks={"ddp 4 whole"})
        killed.go(num_runs)
        assert not killed.told()["questions"][0]["is_decided"]
        killed.go()
        assert killed.told() == whole.told()
        assert sorted(run.name for run in killed.measured) == sorted(run.name for run in whole.measured)
    before = len(whole.measured)
    whole.go()
    assert len(whole.measured) == before, "there was nothing left to do"


def test_what_a_sweep_measured_besides_is_not_what_the_search_cost() -> None:
    machine = Machine(speeds=graded())
    machine.go()
    told = machine.told()
    for run in schedule(TWELVE, cells_of(TWELVE)):
        machine.measure(run)
    assert machine.told() == told


def test_cells_that_noise_does_not_tell_from_the_best_are_kept_but_never_all() -> None:
    machine = Machine(speeds={})
    machine.go()
    per_rung = [run.cell.rung for run in machine.measured]
    assert [per_rung.count(rung) for rung in (1, 2, 3, None)] == [12, 9, 6, 4 * 4 - 4]
    (question,) = machine.told()["questions"]
    assert all(other["is_tied"] for other in question["others"])


def test_a_cell_out_of_memory_leaves_its_row_and_is_out() -> None:
    machine = Machine(speeds=graded(), breaks={"fsdp 4 chunked"})
    machine.go()
    (question,) = machine.told()["questions"]
    assert question["best"]["settings"]["cross_entropy"] == "whole"
    assert [failed["status"] for failed in question["failed"]] == ["oom"]
    assert [name_of(run.cell) for run in machine.measured].count("fsdp 4 chunked") == 1
    before = len(machine.measured)
    machine.breaks.clear()
    machine.go(retry_failed=True)
    assert {name_of(run.cell) for run in machine.measured[before:]} >= {"fsdp 4 chunked"}
    assert machine.told()["questions"][0]["best"]["settings"]["cross_entropy"] == "chunked"


def test_what_the_forecast_excludes_is_never_started() -> None:
    spec = sweep(
        models=["llama-mini"],
        axes={"micro_batch": [1, 2, 4, 8], "seq_len": 128},
        global_batch=8,
        limits={"memory_gb_per_worker": 0.7},
    )
    machine = Machine(spec=spec)
    best = machine.go()
    refused = [run.cell.recipe.micro_batch for run in best.refused()]
    assert refused
    assert not {run.cell.recipe.micro_batch for run in machine.measured} & set(refused)
    (question,) = machine.told()["questions"]
    assert len(question["excluded"]) == len(refused)


def test_all_cells_that_fail_leave_a_question_without_an_answer() -> None:
    machine = Machine(breaks=set(graded()))
    machine.go()
    (question,) = machine.told()["questions"]
    assert (question["is_decided"], question["best"], len(question["failed"])) == (True, None, 12)
    assert "none: no setting could be measured" in machine.table()


def test_axes_that_are_not_searched_are_questions_of_their_own() -> None:
    spec = TWELVE.model_copy(update={"best": TWELVE.best.model_copy(update={"over": ("micro_batch",)})})
    questions = questions_of(spec, cells_of(spec))
    assert [len(question.cells) for question in questions] == [3] * 4
    machine = Machine(spec=spec)
    machine.go()
    assert {run.cell.rung for run in machine.measured} == {None}, "three are finalists from the start"


def test_settings_are_compared_at_equal_sequences_per_step_only() -> None:
    spec = sweep(axes={"micro_batch": [1, 2]}, grad_accum=2)
    with pytest.raises(SpecError, match=r"write global_batch: N"):
        questions_of(spec, cells_of(spec))


def test_rungs_are_shorter_than_the_measurement_and_their_number_is_bounded() -> None:
    full = Window(steps=100, warmup=10, max_s=60)
    windows = [rung_window(full, rung) for rung in range(1, 6)]
    assert [window.steps for window in windows] == [12, 24, 48, 50, 50]
    assert [window.warmup for window in windows] == [2, 3, 5, 5, 5]
    assert windows[3].max_s == 30
    assert [rung_window(Window(steps=3), 1), rung_window(Window(steps=8), 2).steps] == [Window(steps=3), 5]
    for num_cells in range(200):
        rounds = expected_rounds(TWELVE, num_cells)
        assert rounds[-1].num_cells <= FINALISTS
        known = {cell.window for cell in short_cells(TWELVE, cells_of(TWELVE)[0], num_cells)}
        assert {one.window for one in rounds[:-1]} <= known


def test_a_window_of_few_steps_is_its_own_rung() -> None:
    spec = TWELVE.model_copy(update={"measure": Window(steps=3, warmup=1)})
    machine = Machine(spec=spec, speeds=graded())
    machine.go()
    assert len({run.run_id for run in machine.measured}) == len(machine.measured) == 12 + 3 * 3
    assert machine.told()["questions"][0]["best"]["settings"]["micro_batch"] == 4


def test_what_is_best_is_told_in_one_table(golden: Golden) -> None:
    machine = Machine(speeds=graded(), breaks={"ddp 4 whole"})
    machine.open()
    plan = rounds_text(TWELVE, machine.search.rounds)
    nothing = machine.table()
    machine.go()
    assert checked("sweep_best", json.dumps(machine.told()))["questions"]
    golden("best_table.txt", f"{plan}\n{nothing}\n{machine.table()}")
