"""The search of one start of ``--best``: which runs come next, and what its questions' best cells are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.bookkeeper import Bookkeeper
from jobs.sweeps.grid import Cell, Run, schedule
from jobs.sweeps.plan import Plan, replanned
from jobs.sweeps.search.decision import Decision, ranked
from jobs.sweeps.search.halving import (
    Failed,
    Round,
    Stage,
    Throughput,
    expected_rounds,
    rung_cell,
    short_cells,
    stage_of,
)
from jobs.sweeps.search.questions import Question
from reporting.analysis.statistics import step_errors
from reporting.results.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The questions with all runs that an answer may take. ``plans`` are those of the runs' cells, by id."""

    spec: SweepSpec
    questions: tuple[Question, ...]
    plans: dict[str, Plan]

    @classmethod
    def of(cls, spec: SweepSpec, questions: Sequence[Question], plans: dict[str, Plan]) -> "Search":
        """``plans`` are those of the full cells; a rung's cells differ only in how long they take."""
        by_rung = {
            short.cell_id: replanned(plans[cell.cell_id], short)
            for question in questions
            for cell in question.cells
            for short in short_cells(spec, cell, len(question.cells))
        }
        return cls(spec=spec, questions=tuple(questions), plans={**by_rung, **plans})

    @property
    def runs(self) -> list[Run]:
        """Full cells come last: a short cell that is as long as a full one is that one."""
        rungs = [
            Run(cell=short, repeat=1, order=order)
            for question in self.questions
            for order, cell in enumerate(question.cells, start=1)
            for short in short_cells(self.spec, cell, len(question.cells))
        ]
        full = schedule(self.spec, [cell for question in self.questions for cell in question.cells])
        return list({run.run_id: run for run in (*rungs, *full)}.values())

    def candidates(self, question: Question) -> list[Cell]:
        """The question's full cells that the plan does not refuse."""
        return [cell for cell in question.cells if not self.plans[cell.cell_id].refused]

    @property
    def rounds(self) -> list[tuple[Question, list[Round]]]:
        """The rounds that each question is expected to take."""
        return [
            (question, expected_rounds(self.spec, len(self.candidates(question))))
            for question in self.questions
        ]

    def expected(self, question: Question) -> list[Run]:
        """Runs as many and as long as the search will likely take, for a forecast of the time."""
        cells, runs = self.candidates(question), list[Run]()
        for rung, one in enumerate(expected_rounds(self.spec, len(cells)), start=1):
            is_short = one.window != self.spec.measure
            some = [rung_cell(self.spec, cell, rung) if is_short else cell for cell in cells[: one.num_cells]]
            runs += [
                Run(cell=cell, repeat=repeat, order=1)
                for cell in some
                for repeat in range(1, one.repeats + 1)
            ]
        return runs


class BestSearch:
    """Follows a ``Search`` by the rows that ``book`` has. One start hands out each run once."""

    def __init__(self, search: Search, book: Bookkeeper, *, retry_failed: bool) -> None:
        self._search, self._book = search, book
        self._retry_failed = retry_failed
        self._given: set[str] = set()

    def refused(self) -> list[Run]:
        """The first runs of cells that are never started, as far as they have no row yet."""
        cells = (cell for question in self._search.questions for cell in question.cells)
        firsts = [Run(cell=cell, repeat=1, order=1) for cell in cells if self._plan(cell).refused]
        return [run for run in firsts if self._book.is_missing(run, retry_failed=False)]

    def has_work(self, questions: Sequence[Question]) -> bool:
        return bool(self._wave(questions))

    def waves(self, questions: Sequence[Question]) -> Iterator[list[Run]]:
        """What to measure next for ``questions``, until nothing is missing; ask when the last wave is done.

        All questions' rungs come before their finals, whose repeats are then rounds over all of them.
        """
        while wave := self._wave(questions):
            self._given |= {run.run_id for run in wave}
            yield wave

    def decisions(self) -> list[Decision]:
        return [self._decision(question) for question in self._search.questions]

    def _wave(self, questions: Sequence[Question]) -> list[Run]:
        stages = [self._stage(question) for question in questions]
        rungs = [cell for stage in stages if not stage.is_final for cell in stage.cells]
        if rungs:
            # The first round of a schedule over them.
            runs = schedule(self._search.spec, rungs)[: len(rungs)]
        else:
            runs = schedule(self._search.spec, [cell for stage in stages for cell in stage.cells])
        return [run for run in runs if self._is_missing(run)]

    def _stage(self, question: Question) -> Stage:
        return stage_of(self._search.spec, self._search.candidates(question), self._known)

    def _known(self, cell: Cell) -> Throughput | Failed | None:
        run = Run(cell=cell, repeat=1, order=1)
        record = self._book.record_of(run)
        if record is None or self._is_missing(run):
            return None
        if record.status != "ok" or not record.tokens_per_sec:
            return Failed()
        (error,) = step_errors([record.raw_step_times])
        return Throughput(tokens_per_sec=record.tokens_per_sec, error=error)

    def _is_missing(self, run: Run) -> bool:
        is_new = run.run_id not in self._given
        return is_new and self._book.is_missing(run, retry_failed=self._retry_failed)

    def _decision(self, question: Question) -> Decision:
        spec, stage = self._search.spec, self._stage(question)
        finals = schedule(spec, stage.cells) if stage.is_final else []
        rungs = [Run(cell=cell, repeat=1, order=1) for cell in stage.earlier]
        records = {run.run_id: self._book.record_of(run) for run in (*rungs, *finals)}
        of_finalists = [
            (cell, [found for run in finals if run.cell == cell and (found := records[run.run_id])])
            for cell in (stage.cells if stage.is_final else ())
        ]
        missing = (self._book.is_missing(run, retry_failed=False) for run in finals)
        return Decision(
            question=question,
            is_decided=stage.is_final and not any(missing),
            ranked=ranked(of_finalists),
            failed=tuple(self._failed(question)),
            excluded=tuple(cell for cell in question.cells if self._plan(cell).refused),
            records=tuple(record for record in records.values() if record),
        )

    def _failed(self, question: Question) -> Iterator[RunRecord]:
        """The first row without numbers of each candidate that has one."""
        for cell in self._search.candidates(question):
            short = short_cells(self._search.spec, cell, len(question.cells))
            runs = [Run(cell=one, repeat=1, order=1) for one in short]
            runs += schedule(self._search.spec, [cell])
            records = (self._book.record_of(run) for run in runs)
            yield from [record for record in records if record and record.status != "ok"][:1]

    def _plan(self, cell: Cell) -> Plan:
        return self._search.plans[cell.cell_id]
