"""Missing runs become sessions: what may share worker processes, and what never does."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.inventory import WorkerGroup
from jobs.execution.messages import Session
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Run, expand, schedule
from jobs.sweeps.plan import plan_all
from jobs.sweeps.work_queues import in_step
from tests.unit.builders import GB, group, inventory, sessions_of, sweep

GROUPS = {
    "local": group("local", (8,), memory_bytes=8 * GB),
    "amd": group("amd", (8,), vendor="amd", device="MI300X"),
    "fake": group("fake", (8,), vendor="nvidia", simulated=True),
}


def queued(spec: SweepSpec, runs: list[Run] | None = None) -> dict[str, list[Session]]:
    cells = expand(spec, list(GROUPS))
    plans = plan_all(cells, inventory(*GROUPS.values()), spec.limits)
    wanted: dict[str, WorkerGroup] = {cell.group: GROUPS[cell.group] for cell in cells}
    by_id = {plan.cell.cell_id: plan for plan in plans}
    return sessions_of(spec, schedule(spec, cells) if runs is None else runs, by_id, wanted)


def subsets(*values: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=len(values), unique=True)


@st.composite
def specs(draw: st.DrawFn) -> SweepSpec:
    return sweep(
        groups=draw(subsets(*GROUPS)),
        axes={
            "strategy": draw(subsets("ddp", "fsdp", "zero2")),
            "world_size": draw(subsets(1, 2, 4)),
        },
        repeats=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 5)),
        order=draw(st.sampled_from(["shuffled", "interleaved"])),
        isolation=draw(st.sampled_from(["group", "run"])),
    )


@given(specs(), st.randoms())
def test_sessions_hold_all_missing_runs_once_and_never_two_repeats_of_a_cell(
    spec: SweepSpec, dice: Any
) -> None:
    runs = schedule(spec, expand(spec, list(GROUPS)))
    missing = [run for run in runs if dice.random() < 0.7]
    by_id = {run.run_id: run for run in runs}

    found = queued(spec, missing)

    sessions = [session for queue in found.values() for session in queue]
    ids = [job.run_id for session in sessions for job in session.jobs]
    assert sorted(ids) == sorted(run.run_id for run in missing)
    for name, queue in found.items():
        of_queue = [by_id[job.run_id] for session in queue for job in session.jobs]
        assert {run.cell.group for run in of_queue} == {name}
        assert all(one.order < other.order for one, other in pairwise(of_queue))
    for session in sessions:
        members = [by_id[job.run_id] for job in session.jobs]
        assert len({run.cell.cell_id for run in members}) == len(members)
        assert {run.cell.recipe.world_size for run in members} == {session.world_size}
        assert spec.isolation == "group" or len(members) == 1


def test_with_isolation_group_a_round_takes_one_session_per_group_and_world_size() -> None:
    axes = {"strategy": ["ddp", "fsdp", "zero2"], "world_size": [1, 2]}
    found = queued(sweep(groups=["local", "amd"], axes=axes, repeats=3))
    assert {name: len(queue) for name, queue in found.items()} == {"local": 6, "amd": 6}
    assert all(len(session.jobs) == 3 for queue in found.values() for session in queue)


def test_with_isolation_run_every_run_has_fresh_processes() -> None:
    axes = {"strategy": ["ddp", "fsdp", "zero2"], "world_size": [1, 2]}
    found = queued(sweep(axes=axes, repeats=3, isolation="run"))
    assert [len(session.jobs) for session in found["local"]] == [1] * 18


def test_a_cell_alone_still_starts_anew_for_each_repeat() -> None:
    assert [len(session.jobs) for session in queued(sweep(repeats=4))["local"]] == [1] * 4


def test_a_group_without_missing_runs_has_no_queue() -> None:
    assert queued(sweep(), runs=[]) == {}


def test_a_session_brings_its_groups_variables_and_the_specs_win() -> None:
    overrides = {"local": {"environment": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"}}}
    found = queued(sweep(groups=["local", "amd", "fake"], overrides=overrides, repeats=1))
    variables = {name: dict(queue[0].environment) for name, queue in found.items()}
    assert variables == {
        "local": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        "amd": {"RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1", "HSA_NO_SCRATCH_RECLAIM": "1"},
        "fake": {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
    }


def test_a_job_knows_its_vendor_and_whether_it_is_simulated() -> None:
    found = queued(sweep(groups=["local", "amd", "fake"], repeats=1))
    jobs = {name: queue[0].jobs[0] for name, queue in found.items()}
    assert {name: (job.vendor, job.simulated) for name, job in jobs.items()} == {
        "local": ("cpu", False),
        "amd": ("amd", False),
        "fake": ("nvidia", True),
    }


def test_only_workers_on_cores_have_a_memory_budget() -> None:
    found = queued(sweep(groups=["local", "amd", "fake"], repeats=1, limits={"memory_gb_per_worker": 2}))
    budgets = {name: queue[0].jobs[0].memory_budget_bytes for name, queue in found.items()}
    assert budgets == {"local": 2 * GB, "amd": None, "fake": 2 * GB}


def test_interleaved_groups_begin_a_round_together() -> None:
    """``a`` is quick and ``b`` slow: a gets nothing to do until b has begun the same round."""
    waves = in_step({"a": [["a1"], ["a2"], ["a3"]], "b": [["b1"], ["b2"], ["b3"]]})  # type: ignore[arg-type]  # runs as names
    a, b = iter(waves["a"]), iter(waves["b"])
    assert [next(a), next(b)] == [["a1"], ["b1"]]
    assert [next(a), next(a)] == [None, None]
    assert [next(b), next(a)] == [["b2"], ["a2"]]
    assert [next(b), next(b)] == [None, None]
    assert [next(a), next(b)] == [["a3"], ["b3"]]
    assert [next(a, "end"), next(b, "end")] == ["end", "end"]


def test_a_group_without_work_in_a_round_holds_up_nobody() -> None:
    waves = in_step({"a": [["a1"], ["a2"]], "b": [[], ["b2"]]})  # type: ignore[arg-type]  # runs as names
    a, b = iter(waves["a"]), iter(waves["b"])
    assert [next(b), next(a), next(b), next(a), next(b, "end"), next(a, "end")] == [
        [], ["a1"], None, ["a2"], ["b2"], "end",
    ]  # fmt: skip
