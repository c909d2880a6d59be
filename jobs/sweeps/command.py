"""``longhaul sweep`` works as a reconciler: it measures only the runs that have no result yet.

Each result is stored as soon as it is measured, and created only once. A kill at any moment loses only the
run being measured.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from checkpointing.stores.opening import open_store
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, WorkerGroup
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    OF_STORES,
    complain,
    run_command,
)
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.execution.executor import Executor, PeersFailed
from jobs.execution.messages import SessionLimits
from jobs.execution.resources import mode_of
from jobs.launch.choose import choose_executor
from jobs.launch.torchrun import LauncherPlace
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.bookkeeper import Bookkeeper
from jobs.sweeps.grid import Cell, Run, expand, schedule
from jobs.sweeps.live_view import open_display
from jobs.sweeps.plan import Plan, plan_all
from jobs.sweeps.results import Results
from jobs.sweeps.tables import placement_text, plan_table
from jobs.sweeps.work_queues import queues
from reporting.results.result_rows import row_of
from reporting.results.settings import settings_of

Plans = dict[str, Plan]


def sweep(args: argparse.Namespace) -> int:
    try:
        codes = {SpecError: EXIT_USAGE, ClusterError: EXIT_USAGE, **OF_STORES}
        is_main_process = LauncherPlace.of_this_process().rank == 0
        return run_command("sweep", lambda: _sweep(args), codes, is_main_process=is_main_process)
    except PeersFailed as error:
        return complain("sweep", f"{error}; running it again goes on with the next run", EXIT_FAILED)


def _sweep(args: argparse.Namespace) -> int:
    spec = SweepSpec.load(args.spec, args.set)
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
        mode = mode_of(share_nodes=spec.share_nodes, spread=spec.spread)
        plans = {plan.cell.cell_id: plan for plan in plan_all(cells, inventory, spec.limits, mode)}
        if args.dry_run:
            if executor.is_main_process:
                print(_plans_json(spec, plans) if args.json else plan_table([*plans.values()], spec.repeats))
            return EXIT_OK
        store.probe()
        results = Results(store, spec.name)
        runs = schedule(spec, cells)
        if executor.is_main_process:
            results.describe(spec, runs)
        runs = [run for run in runs if executor.can_run(run.cell.recipe.world_size)]
        cells = [cell for cell in cells if executor.can_run(cell.recipe.world_size)]
        if not cells:
            raise SpecError([f"{spec.name}: no cell is for this start ({executor.describe()})"])
        book = Bookkeeper(spec, results, results.load(), runs, plans)
        was_interrupted = _finish_missing(args, spec, book, plans, executor)
    if not executor.is_main_process:
        return EXIT_OK
    print(_runs_json(book) if args.json else _summary(book, cells, store.url))
    if was_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if book.is_all_ok else EXIT_FAILED


def _finish_missing(
    args: argparse.Namespace, spec: SweepSpec, book: Bookkeeper, plans: Plans, executor: Executor
) -> bool:
    """Measures what is missing. Returns True if Ctrl-C ended the work early."""
    missing = book.missing(retry_failed=args.retry_failed)
    ready = [run for run in missing if not plans[run.cell.cell_id].refused]
    with open_display(missing, plans, quiet=args.json, silent=not executor.is_main_process) as display:
        for problem in book.unreadable:
            display.note(problem)
        for run in missing:
            if executor.is_main_process and (failure := plans[run.cell.cell_id].refused):
                book.refuse(run, failure, display)
        try:
            if ready:
                groups = executor.groups(_groups_of(ready, plans))
                listen = partial(book.listen, display=display)
                executor.run(queues(spec, ready, plans, groups), _limits(spec), listen)
        except KeyboardInterrupt:
            return True
    return False


def _groups_of(runs: Sequence[Run], plans: Plans) -> dict[str, WorkerGroup]:
    groups = [plans[run.cell.cell_id].group for run in runs]
    return {group.name: group for group in groups if group is not None}


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


def _plans_json(spec: SweepSpec, plans: Plans) -> str:
    return json.dumps({"cells": [_plan_dict(spec, plan) for plan in plans.values()]}, indent=1)


def _plan_dict(spec: SweepSpec, plan: Plan) -> dict[str, Any]:
    recipe = plan.cell.recipe
    return {
        "cell_id": plan.cell.cell_id,
        "model": recipe.model.name,
        "strategy": recipe.strategy,
        "world_size": recipe.world_size,
        "seq_len": recipe.seq_len,
        "micro_batch": recipe.micro_batch,
        "grad_accum": recipe.grad_accum,
        "precision": recipe.precision,
        **settings_of(recipe),
        "group": plan.cell.group,
        "repeats": spec.repeats,
        "parameters": recipe.model.num_parameters,
        "flops_per_token": plan.flops_per_token,
        "recomputed_flops_per_token": plan.recomputed_flops_per_token,
        "predicted_memory_bytes": plan.predicted_memory_bytes,
        "predicted_run_s": plan.predicted_s,
        "refused" if plan.refused else "placement": placement_text(plan),
    }
