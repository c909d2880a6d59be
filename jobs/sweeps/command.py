"""``longhaul sweep`` works as a reconciler: it measures only the runs that have no result yet.

Each result is stored as soon as it is measured, and created only once. A kill at any moment loses only the
run being measured.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from checkpointing.stores.contract import Store
from checkpointing.stores.opening import open_store
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, DidNotStart, WorkerGroup
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    OF_STORES,
    complain,
    run_command,
)
from jobs.commandline.interrupts import interrupting_signals
from jobs.commandline.output import printable
from jobs.commandline.set_values import warn_of_secrets_in_job
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.execution.executor import Executor, PeersFailed
from jobs.execution.messages import SessionLimits
from jobs.execution.resources import mode_of
from jobs.launch.choose import choose_executor
from jobs.launch.torchrun import LauncherPlace
from jobs.run_progress.sweep_driver import SweepDriver
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.bookkeeper import Bookkeeper
from jobs.sweeps.grid import MAX, Cell, Run, expand, schedule
from jobs.sweeps.live_view import Display, open_display
from jobs.sweeps.plan import Plan, check_groups, plan_all
from jobs.sweeps.progress_display import ProgressDisplay
from jobs.sweeps.results import Results, StoredResults
from jobs.sweeps.search.questions import questions_of
from jobs.sweeps.sessions import Sessions
from jobs.sweeps.tables import placement_text, plan_table
from jobs.sweeps.work_queues import Start, Waves, in_step, queues, upcoming
from reporting.analysis.formatting import counted
from reporting.results.result_rows import row_of
from reporting.results.settings import settings_of

if TYPE_CHECKING:
    from jobs.sweeps.search.best import Search

Plans = dict[str, Plan]


def sweep(args: argparse.Namespace) -> int:
    try:
        codes = {SpecError: EXIT_USAGE, ClusterError: EXIT_USAGE, DidNotStart: EXIT_FAILED, **OF_STORES}
        is_main_process = LauncherPlace.of_this_process().rank == 0
        code = run_command("sweep", lambda: _interruptible(args), codes, is_main_process=is_main_process)
        if code == EXIT_INTERRUPTED and is_main_process:
            complain("sweep", "interrupted; the same command goes on", code)
        return code
    except PeersFailed as error:
        return complain("sweep", f"{error}; running it again goes on with the next repeat", EXIT_FAILED)


def _interruptible(args: argparse.Namespace) -> int:
    with interrupting_signals():
        return _sweep(args)


def _sweep(args: argparse.Namespace) -> int:
    if args.best and args.again:
        raise SpecError(["--again: --best chooses by its own repeats; measure again without --best"])
    spec = SweepSpec.load(args.spec, args.set)
    warn_of_secrets_in_job(args.set)
    store = open_store(args.store or spec.store, base=store_base())
    with choose_executor(
        args.executor,
        verbose=args.verbose,
        share_nodes=spec.share_nodes,
        spread=spec.spread,
        excluded=args.exclude_node,
    ) as executor:
        inventory = read_cluster(args.cluster) if args.cluster else executor.inventory()
        cells = expand(spec, [group.name for group in inventory.groups])
        check_groups([cell.group for cell in cells], inventory)
        mode = mode_of(share_nodes=spec.share_nodes, spread=spec.spread)
        plans = {plan.cell.cell_id: plan for plan in plan_all(cells, inventory, spec.limits, mode)}
        search = _search(spec, cells, plans) if args.best else None
        if args.dry_run:
            if executor.is_main_process:
                print(
                    _plans_json(spec, plans, search)
                    if args.json
                    else printable(_plan_text(spec, plans, search))
                )
            return EXIT_OK
        store.probe()
        with SweepDriver(store, spec.name) if executor.is_main_process else nullcontext():
            return _run(args, spec, store, executor, plans, search)


def _run(
    args: argparse.Namespace,
    spec: SweepSpec,
    store: Store,
    executor: Executor,
    plans: Plans,
    search: "Search | None",
) -> int:
    results, cells = Results(store, spec.name), [plan.cell for plan in plans.values()]
    found = results.load()
    sessions = _sessions(args, spec, results, found, cells)
    runs = schedule(spec, cells, sessions)
    if executor.is_main_process:
        results.describe(spec, runs, sessions)
    if not any(executor.can_run(cell.recipe.world_size) for cell in cells):
        raise SpecError([f"{spec.name}: no cell is for this start ({executor.describe()})"])
    if search:
        return _find_best(args, search, results, executor, store.url)
    runs = [run for run in runs if executor.can_run(run.cell.recipe.world_size)]
    cells = [cell for cell in cells if executor.can_run(cell.recipe.world_size)]
    book = Bookkeeper(spec, results, found, runs, plans)
    was_interrupted = _measure(args, spec, book, plans, executor, _missing(args, spec, book, plans))
    if not executor.is_main_process:
        return EXIT_OK
    print(_runs_json(book) if args.json else printable(_summary(book, cells, store.url)))
    if was_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if book.is_all_ok else EXIT_FAILED


def _sessions(
    args: argparse.Namespace,
    spec: SweepSpec,
    results: Results,
    found: StoredResults,
    cells: Sequence[Cell],
) -> Sessions:
    """The sessions to measure. ``--again`` adds one if no run of the earlier ones is missing."""
    sessions = results.sessions(spec.repeats)
    names = {run.name for run in schedule(spec, cells, sessions)}
    if not args.again or not names <= found.records.keys():
        return sessions
    return sessions.again(max((record.repeat for record in found.records.values()), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a start measures. ``refused`` are never started. ``expected`` is a guess at ``waves``. ``session``
    is the number of the last one, from 1.
    """

    refused: Sequence[Run]
    waves: Waves
    expected: Sequence[Run]
    session: int = 1


def _missing(args: argparse.Namespace, spec: SweepSpec, book: Bookkeeper, plans: Plans) -> _Work:
    missing = book.missing(retry_failed=args.retry_failed)
    ready = [run for run in missing if not plans[run.cell.cell_id].refused]
    groups = dict.fromkeys(run.cell.group for run in ready)
    repeats = dict.fromkeys(run.repeat for run in ready)
    rounds = {
        group: [[run for run in ready if (run.cell.group, run.repeat) == (group, one)] for one in repeats]
        for group in groups
    }
    return _Work(
        refused=[run for run in missing if plans[run.cell.cell_id].refused],
        waves=in_step(rounds) if spec.order == "interleaved" else rounds,
        expected=missing,
        session=max((run.session for run in ready), default=1),
    )


def _measure(
    args: argparse.Namespace,
    spec: SweepSpec,
    book: Bookkeeper,
    plans: Plans,
    executor: Executor,
    work: _Work,
) -> bool:
    """Measures what is missing. Returns True if Ctrl-C ended the work early."""
    with _display(args, book, plans, executor, work) as display:
        for problem in book.unreadable:
            display.note(problem)
        if work.session > 1:
            display.note(
                f"session {work.session}: {counted(len(work.expected), 'repeat')} more of the same cells"
            )
        for run in work.refused:
            if executor.is_main_process and (failure := plans[run.cell.cell_id].refused):
                book.refuse(run, failure, display)

        def start_of(run: Run) -> Start:
            start = book.start_of(run, retry_failed=args.retry_failed)
            if start is None and executor.is_main_process:
                book.nothing_fits(run, display)
            return start

        try:
            if not args.json and not work.waves and not work.refused:
                display.note(_nothing_to_do(book))
            if work.waves:
                if starts := executor.starts():
                    display.note(starts)
                groups = executor.groups(_groups_of(work.waves, plans), upcoming(work.expected, plans))
                listen = partial(book.listen, display=display)
                executor.run(queues(spec, work.waves, plans, groups, start_of), _limits(spec), listen)
        except KeyboardInterrupt:
            return True
    return False


def _display(
    args: argparse.Namespace, book: Bookkeeper, plans: Plans, executor: Executor, work: _Work
) -> Display:
    is_main_process = executor.is_main_process
    display = open_display(work.expected, plans, quiet=args.json, silent=not is_main_process)
    return ProgressDisplay(display, book.progress(work.expected)) if is_main_process else display


def _nothing_to_do(book: Bookkeeper) -> str:
    num_failed = sum(record.status != "ok" for record in book.records)
    again = (
        f"; --retry-failed measures again what failed ({counted(num_failed, 'repeat')})" if num_failed else ""
    )
    return f"nothing to do: every cell has its results{again}"


def _groups_of(names: Iterable[str], plans: Plans) -> dict[str, WorkerGroup]:
    groups = {plan.cell.group: plan.group for plan in plans.values() if plan.group is not None}
    return {name: groups[name] for name in names}


def _search(spec: SweepSpec, cells: Sequence[Cell], plans: Plans) -> "Search":
    # The import loads the report's statistics, which a plain ``--dry-run`` does not need.
    from jobs.sweeps.search.best import Search

    return Search.of(spec, questions_of(spec, cells), plans)


def _find_best(
    args: argparse.Namespace, search: "Search", results: Results, executor: Executor, store: str
) -> int:
    from jobs.sweeps.search.best import BestSearch
    from jobs.sweeps.search.best_table import best_table
    from jobs.sweeps.search.decision import cost_of, document

    spec = search.spec
    book = Bookkeeper(spec, results, results.load(), search.runs, search.plans)
    best = BestSearch(search, book, retry_failed=args.retry_failed)
    own = [one for one in search.questions if executor.can_run(one.cells[0].recipe.world_size)]
    by_group = {name: [one for one in own if one.group == name] for name in (one.group for one in own)}
    work = _Work(
        refused=best.refused(),
        waves={group: best.waves(ones) for group, ones in by_group.items() if best.has_work(ones)},
        expected=[run for one in own for run in search.expected(one) if book.record_of(run) is None],
    )
    was_interrupted = _measure(args, spec, book, search.plans, executor, work)
    if not executor.is_main_process:
        return EXIT_OK
    decisions = best.decisions()
    cost = cost_of(spec, decisions)
    told = document(spec, decisions, cost)
    results.write_best(told)
    print(
        json.dumps(told, indent=1)
        if args.json
        else printable(f"{best_table(decisions, cost)}results: {store}")
    )
    if was_interrupted:
        return EXIT_INTERRUPTED
    is_answered = all(one.is_decided and one.ranked for one in decisions if one.question in own)
    return EXIT_OK if is_answered else EXIT_FAILED


def _limits(spec: SweepSpec) -> SessionLimits:
    return SessionLimits(
        schedule_timeout_s=spec.limits.schedule_timeout_s,
        cell_timeout_s=spec.limits.cell_timeout_s,
        hang_timeout_s=spec.limits.hang_timeout_s,
    )


def _summary(book: Bookkeeper, cells: Sequence[Cell], store: str) -> str:
    # The import loads the report's statistics, which ``--dry-run`` does not need.
    from jobs.sweeps.score_table import score_table, suspicions

    rows = [row_of(record.to_json(), record.run_id) for record in book.records]
    lines = [score_table(cells, rows)]
    lines += [f"{line}\n" for line in (*book.problems, *suspicions(rows))]
    return "".join([*lines, f"results: {store}"])


def _runs_json(book: Bookkeeper) -> str:
    return json.dumps({"runs": [record.to_dict() for record in book.records]}, indent=1)


def _plan_text(spec: SweepSpec, plans: Plans, search: "Search | None") -> str:
    table = plan_table([*plans.values()], spec.repeats)
    if search is None:
        return table
    from jobs.sweeps.search.best_table import rounds_text

    return table + rounds_text(spec, search.rounds)


def _plans_json(spec: SweepSpec, plans: Plans, search: "Search | None") -> str:
    found: dict[str, Any] = {"cells": [_plan_dict(spec, plan) for plan in plans.values()]}
    if search is not None:
        found["questions"] = [
            {
                "asked": dict(question.asked),
                "rounds": [
                    {"num_cells": one.num_cells, "steps": one.window.steps, "repeats": one.repeats}
                    for one in rounds
                ],
            }
            for question, rounds in search.rounds
        ]
    return json.dumps(found, indent=1)


def _plan_dict(spec: SweepSpec, plan: Plan) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "cell_id": plan.cell.cell_id,
        "model": recipe.model.name,
        "strategy": recipe.strategy,
        "world_size": recipe.world_size,
        "seq_len": recipe.seq_len,
        "micro_batch": recipe.micro_batch,
        "grad_accum": recipe.grad_accum,
        **({"micro_batch_asked": MAX} if plan.cell.question else {}),
        "precision": recipe.precision,
        **settings_of(recipe),
        "group": plan.cell.group,
        "repeats": spec.repeats,
        "parameters": recipe.model.num_parameters,
        "flops_per_token": plan.flops_per_token,
        "recomputed_flops_per_token": plan.recomputed_flops_per_token,
        "predicted_memory_bytes": plan.predicted_memory_bytes,
        "predicted_host_memory_bytes": plan.host_memory_bytes,
        "predicted_run_s": plan.predicted_s,
        "refused" if plan.refused else "placement": placement_text(plan),
    }
