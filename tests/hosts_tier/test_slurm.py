"""``longhaul slurm`` on a real Slurm: ends of wall time, scancel, two users on one node, nodes that die."""

import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts_tier.slurm import Slurm, SlurmJob, User, slurm_with, why_no_slurm
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import ROOT, run, write_spec
from tests.live.machines.test_environments import python_in_an_open_folder

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.longest,
    pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm())),
]
# A file or folder that Apptainer runs and in which this version of Longhaul is installed.
IMAGE = os.environ.get("LONGHAUL_TEST_IMAGE", "")
NEEDS_AN_IMAGE = pytest.mark.skipif(
    not (IMAGE and shutil.which("apptainer")),
    reason="no Apptainer, or no LONGHAUL_TEST_IMAGE that names an image with Longhaul",
)
# So many steps are to be durable between two ends.
MORE = 40
SPEC = """
name: r
model: llama-tiny
seq_len: 32
steps: 1000000
data: {samples: 4096}
checkpoint: {every_steps: 20, deadline_s: 10, retention: {last: 3, epochs: false}}
record: {flush_s: 1, tensorboard: false}
limits: {schedule_timeout_s: 60}
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    with slurm_with("n1", "n2") as slurm:
        yield slurm


def submit(slurm: Slurm, folder: Path, *flags: str, user: User | None = None) -> SlurmJob:
    spec = write_spec(folder, SPEC)
    job = slurm.submit(spec, folder / "store", "--time=60", "--stop-before=120", *flags, user=user)
    # What happens to the file then does not matter.
    spec.unlink()
    return job


def stop(job: SlurmJob) -> None:
    """The run saves and ends, and with it the job."""
    done = run([sys.executable, "-m", "jobs.cli", "stop", "r", "--store", str(job.store)])
    assert done.returncode == 0, f"{done.stderr}{job.says()}"
    assert job.end() == "COMPLETED", job.says()


def assert_as_left_alone(job: SlurmJob, folder: Path, *flags: str) -> None:
    """The run's newest save is that of a run which nothing happened to, to the bit."""
    folder.mkdir()
    step = job.newest_step()
    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(folder, SPEC))]
    command += ["--store", str(folder / "store"), "--set", f"steps={step}"]
    done = run([*command, *(flags or ("--executor", "inline"))])
    assert done.returncode == 0, done.stderr
    ours, alone = newest_manifest(job.store, "r"), newest_manifest(folder / "store", "r")
    assert digests_of(ours) == digests_of(alone)


def folders_of(job: SlurmJob) -> list[str]:
    return [path.name for path in Path("/tmp").glob(f"lhs-{job.number}-*")]


@pytest.mark.soak
def test_a_run_that_meets_its_wall_time_is_queued_again_and_ends_as_one_that_was_left_alone(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path)
    job.wait_for_step(MORE)
    step = job.meets_its_wall_time()
    job.wait_for_step(step + MORE)
    stop(job)
    assert slurm.processes(job.number) == []
    assert folders_of(job) == []
    assert_as_left_alone(job, tmp_path / "alone")


@pytest.mark.soak
def test_ten_ends_of_wall_time_leave_the_run_as_if_it_had_been_left_alone(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path)
    job.wait_for_step(MORE)
    for _ in range(10):
        job.wait_for_step(job.meets_its_wall_time() + MORE)
    assert job.num_restarts() == 10
    stop(job)
    assert_as_left_alone(job, tmp_path / "alone")


@pytest.mark.soak
def test_a_run_that_is_done_is_not_queued_again(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "--set", "steps=60")
    assert job.end() == "COMPLETED", job.says()
    assert (job.num_restarts(), job.newest_step()) == (0, 60)


@pytest.mark.soak
def test_scancel_loses_no_step(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path)
    job.wait_for_step(MORE)
    slurm.run("scancel", job.number)
    assert job.end() == "CANCELLED", job.says()
    assert "r: stopped at step" in job.says()
    assert f"r: stopped at step {job.newest_step()} (" in job.says()
    assert folders_of(job) == []
    assert_as_left_alone(job, tmp_path / "alone")


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("container", ["none", pytest.param("Apptainer", marks=NEEDS_AN_IMAGE)])
def test_scancel_of_ranks_on_several_nodes_loses_no_step(
    container: str, world_size: int, slurm: Slurm, tmp_path: Path
) -> None:
    """The next job goes on from there."""
    flags = ["--nodes=2"] if world_size > 1 else []
    flags += [
        f"--set=world_size={world_size}",
        *([f"--container={IMAGE}"] if container == "Apptainer" else []),
    ]
    job = submit(slurm, tmp_path, *flags)
    job.wait_for_step(MORE)
    slurm.run("scancel", job.number)
    assert job.end() == "CANCELLED", job.says()
    step = job.newest_step()
    assert f"r: stopped at step {step} (" in job.says()
    assert (slurm.processes(job.number), folders_of(job)) == ([], [])
    job = submit(slurm, tmp_path, *flags)
    job.wait_for_step(step + MORE)
    stop(job)
    assert (slurm.processes(job.number), folders_of(job)) == ([], [])
    assert_as_left_alone(job, tmp_path / "alone", "--set", f"world_size={world_size}")


@pytest.mark.soak
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_job_whose_node_loses_power_goes_on_from_the_newest_save(
    node: str, slurm: Slurm, tmp_path: Path
) -> None:
    """The script and the head are on n1."""
    job = submit(slurm, tmp_path, "--nodes=2")
    job.wait_for_step(MORE)
    slurm.power_off(node)
    job.wait_until(lambda: job.state() == "PENDING" or job.num_restarts() > 0, "Slurm's notice")
    slurm.power_on(node)
    # On the node that is left the run goes on by itself until Slurm ends that start.
    job.wait_until(lambda: job.num_restarts() > 0 and job.state() == "RUNNING", "its next start")
    job.wait_for_step(job.newest_step() + MORE)
    assert job.num_restarts() == 1
    stop(job)
    assert_as_left_alone(job, tmp_path / "alone")


@pytest.mark.soak
def test_two_jobs_of_one_run_take_turns(slurm: Slurm, tmp_path: Path) -> None:
    first = submit(slurm, tmp_path)
    second = submit(slurm, tmp_path)
    first.wait_for_step(MORE)
    assert second.state() == "PENDING"
    stop(first)
    second.wait_for_step(first.newest_step() + MORE)
    slurm.run("scancel", second.number)
    assert second.end() == "CANCELLED"
    assert_as_left_alone(second, tmp_path / "alone")


@pytest.mark.soak
def test_jobs_of_two_users_train_side_by_side_on_one_node() -> None:
    with slurm_with("n1", within=python_in_an_open_folder()) as slurm:
        users = [_user(slurm.folder, name) for name in ("games", "nobody")]
        if not _may_run_python(slurm, users[0]):
            pytest.skip(f"other users may not read {ROOT}")
        jobs = [submit(slurm, user.home, user=user) for user in users]
        for job in jobs:
            job.wait_for_step(MORE)
        assert {job.state() for job in jobs} == {"RUNNING"}
        slurm.run("scancel", jobs[0].number)
        assert jobs[0].end() == "CANCELLED"
        jobs[1].wait_for_step(jobs[1].newest_step() + MORE)
        stop(jobs[1])
        for job, user in zip(jobs, users, strict=True):
            assert folders_of(job) == []
            assert_as_left_alone(job, user.home / "alone")


def _may_run_python(slurm: Slurm, user: User) -> bool:
    with suppress(RuntimeError):
        slurm.run(sys.executable, "-c", "import jobs", user=user)
        return True
    return False


def _user(folder: Path, name: str) -> User:
    found, home = pwd.getpwnam(name), folder / name
    home.mkdir()
    os.chown(home, found.pw_uid, found.pw_gid)
    return User(uid=found.pw_uid, gid=found.pw_gid, home=home)


HETEROGENEOUS = """
name: s
models: [llama-tiny]
groups: [one, other]
axes: {world_size: [1], seq_len: [32]}
measure: {steps: 4, warmup: 1}
repeats: 1
limits: {schedule_timeout_s: 60, cell_timeout_s: 120}
"""


@pytest.mark.soak
def test_a_heterogeneous_job_measures_a_sweep_on_both_of_its_groups(slurm: Slurm, tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, HETEROGENEOUS), tmp_path / "store"
    job = slurm.submit(spec, store, "--time=60", "--group=one=-w n1", "--group=other=-w n2")
    assert job.end() == "COMPLETED", job.says()
    rows = [path.read_text(encoding="utf-8") for path in store.glob("sweeps/s/runs/*/result.json")]
    assert sorted('"one"' in row for row in rows) == [False, True]
    assert all('"status": "ok"' in row or '"status":"ok"' in row for row in rows)
