"""The script of a Slurm job on an allocation of fakes: what it starts, hears, ends and queues again."""

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.slurm.allocation import Allocation

SECRET = "wandb-0123456789-nobody-may-read-this"


@pytest.fixture
def allocation(tmp_path: Path) -> Allocation:
    return Allocation(tmp_path)


def leftovers(allocation: Allocation) -> list[str]:
    """Processes of the job that are still there, and its folders."""
    words = [_environment(pid) for pid in Path("/proc").iterdir() if pid.name.isdecimal()]
    here = f"HERE={allocation.here}".encode()
    processes = [text.decode() for text in words if here in text.split(b"\0")]
    return processes + [str(path) for path in allocation.folders()]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_a_job_whose_driver_is_done_is_done_and_leaves_nothing(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), DRIVER_CODE="0")
    assert code == 0, said
    assert not allocation.is_queued_again()
    assert leftovers(allocation) == []
    started = allocation.seen("started").split()
    assert {"cluster.slurm.head", "cluster.slurm.worker", "jobs.cli"} <= {*started}


def test_the_exit_code_is_the_drivers(allocation: Allocation) -> None:
    code, _ = allocation.run(allocation.job(), DRIVER_CODE="2")
    assert code == 2
    assert not allocation.is_queued_again()


def test_a_wall_time_that_ends_lets_the_driver_save_and_queues_the_job_again(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), signal.SIGUSR1)
    assert code == 0
    assert allocation.is_queued_again()
    assert "queued again" in said
    assert leftovers(allocation) == []


def test_a_sweep_that_is_interrupted_by_its_wall_time_is_queued_again(allocation: Allocation) -> None:
    allocation.run(allocation.job(kind="sweep"), signal.SIGUSR1, STOP_CODE="130")
    assert allocation.is_queued_again()


def test_scancel_lets_the_driver_save_and_queues_nothing(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), signal.SIGTERM)
    assert code == 0
    assert allocation.seen("saved") == "step 2\n"
    assert not allocation.is_queued_again()
    assert "cancelled; the same script goes on: sbatch job.sh" in said
    assert leftovers(allocation) == []


@pytest.mark.parametrize("code", [0, 1, 137])
def test_the_code_of_a_driver_that_ends_while_the_signal_is_attended_to_is_its_own(
    allocation: Allocation, code: int
) -> None:
    allocation.after_asking = 'until ! kill -0 "$DRIVER" 2>/dev/null; do sleep 0.02; done'
    assert allocation.run(allocation.job(), signal.SIGTERM, STOP_CODE=str(code))[0] == code


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGTERM])
def test_scancel_wins_over_a_wall_time_that_ends(first: signal.Signals, allocation: Allocation) -> None:
    second = {signal.SIGUSR1: signal.SIGTERM, signal.SIGTERM: signal.SIGUSR1}[first]
    allocation.run(allocation.job(), first, second)
    assert not allocation.is_queued_again()


def test_the_sigterm_at_the_end_of_the_wall_time_is_no_scancel(allocation: Allocation) -> None:
    allocation.run(allocation.job(time_s=1), signal.SIGTERM, DRIVES_AFTER_S="2")
    assert allocation.is_queued_again()


def test_a_job_that_saved_nothing_in_its_whole_time_is_not_queued_for_ever(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), signal.SIGUSR1, SAVES_NOTHING="1")
    assert code == 1
    assert not allocation.is_queued_again()
    assert "give it more --time" in said


def test_a_job_whose_store_is_away_is_queued_again_all_the_same(allocation: Allocation) -> None:
    (allocation.here / "saved").write_text("", encoding="utf-8")
    allocation.run(allocation.job(), signal.SIGUSR1, SAVES_NOTHING="1")
    assert allocation.is_queued_again()


def test_where_slurm_lets_no_job_queue_again_a_new_one_is_submitted(allocation: Allocation) -> None:
    allocation.has("sbatch", 'cat "$1" > "$HERE/submitted"')
    allocation.run(allocation.job(), signal.SIGUSR1, REQUEUES="1")
    assert allocation.seen("submitted") == allocation.seen("job.sh")


def test_a_head_that_does_not_start_is_one_line_with_its_reason(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), HEAD_FAILS="3")
    assert code == 1
    assert said.count("Ray's head did not start: no room") == 3
    assert allocation.seen("driver") == ""


def test_a_head_that_was_too_slow_is_started_again(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(), HEAD_FAILS="2", DRIVER_CODE="0")
    assert code == 0, said
    assert leftovers(allocation) == []


def test_nodes_that_do_not_join_end_the_job_before_its_driver_begins(allocation: Allocation) -> None:
    code, _ = allocation.run(allocation.job(), NODES_FAIL="1")
    assert code == 1
    assert allocation.seen("driver") == ""
    assert leftovers(allocation) == []


def test_a_node_that_is_too_busy_to_begin_its_command_never_begins_it(allocation: Allocation) -> None:
    allocation.before_inside = "[[ $2 != cluster.slurm.worker ]] || sleep 1"
    code, _ = allocation.run(allocation.job(), NODES_FAIL="1")
    assert code == 1
    assert "cluster.slurm.worker" not in allocation.seen("started")
    assert leftovers(allocation) == []


OPENED = {
    "RAY_enable_metrics_collection": "1",
    "AUTOSCALER_METRIC_PORT": "44217",
    "DASHBOARD_METRIC_PORT": "44227",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"RAY_enable_metrics_collection=0", "AUTOSCALER_METRIC_PORT=-1", "DASHBOARD_METRIC_PORT=-1"}),
        (OPENED, {f"{name}={value}" for name, value in OPENED.items()}),
    ],
)
def test_rays_metrics_which_ask_for_no_token_are_given_only_if_somebody_says_so(
    allocation: Allocation, settings: dict[str, str], expected: set[str]
) -> None:
    allocation.run(allocation.job(), DRIVER_CODE="0", **settings)
    metrics = re.compile(
        r"^(?:RAY_enable_metrics_collection|(?:AUTOSCALER|DASHBOARD)_METRIC_PORT)=.*$", re.MULTILINE
    )
    assert {*metrics.findall(allocation.seen("environments"))} == expected


def test_the_token_is_on_no_command_line_and_in_no_environment(allocation: Allocation) -> None:
    allocation.run(allocation.job(), DRIVER_CODE="0")
    token = allocation.seen("token")
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert allocation.seen("token_of_node") == token
    for seen in ("commands", "environments", "srun", "job.sh"):
        assert allocation.seen(seen)
        assert token not in allocation.seen(seen)


def test_each_job_has_a_token_of_its_own(allocation: Allocation) -> None:
    allocation.run(allocation.job(), DRIVER_CODE="0")
    first = allocation.seen("token")
    allocation.run(allocation.job(), DRIVER_CODE="0")
    assert allocation.seen("token") != first


def test_what_the_job_keeps_is_closed_to_other_users(allocation: Allocation) -> None:
    with allocation.running(allocation.job()) as process:
        allocation.wait_for("drives")
        folders = allocation.folders()
        modes = {path.name: path.stat().st_mode & 0o777 for one in folders for path in (one, *one.iterdir())}
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert modes.pop("token") == 0o600
    assert modes.pop("spec.yaml") == 0o600
    assert {mode for name, mode in modes.items() if name.startswith("lhs-")} == {0o700}
    assert len(folders) == 2


def test_the_spec_reaches_the_driver_to_the_letter(allocation: Allocation) -> None:
    text = 'name: r\nnote: "it\'s $HOME `id` \\n" # \'x\'\nlast: "é"'
    allocation.run(allocation.job(spec_text=text), DRIVER_CODE="0")
    assert allocation.seen("spec") == f"{text}\n"


def test_arguments_reach_the_driver_as_they_are(allocation: Allocation) -> None:
    words = ("--store", "/a b/'c'", "--set", 'x="$(id)"\n;', "--set", "y=*")
    allocation.run(allocation.job(arguments=words), DRIVER_CODE="0")
    assert allocation.seen("driver").endswith("\n".join([*words, ""]))


def test_settings_with_a_secret_reach_the_driver_through_files_of_the_job(allocation: Allocation) -> None:
    settings = ("environment.API_KEY", f"'{SECRET}\n$(id)'", "steps", "4", "environment.B", "@/home/me/b")
    allocation.run(allocation.job(settings=settings), DRIVER_CODE="0")
    *_, first, _, second, _, third = allocation.seen("driver").splitlines()
    place = re.escape("/tmp/lhs-")
    assert re.fullmatch(rf"environment\.API_KEY=@{place}.*/setting-0", first)
    assert re.fullmatch(rf"steps=@{place}.*/setting-2", second)
    assert third == "environment.B=@/home/me/b"
    assert allocation.seen("settings") == f"600\n'{SECRET}\n$(id)'600\n4"
    for seen in ("commands", "environments", "srun"):
        assert SECRET not in allocation.seen(seen)


def test_a_directory_that_is_not_on_the_node_is_said(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(directory="/there/is none"), DRIVER_CODE="0")
    assert code == 0
    assert "there is no folder /there/is none here" in said


def test_a_python_that_is_not_on_the_node_is_one_line(allocation: Allocation) -> None:
    code, said = allocation.run(allocation.job(python="/opt/nowhere/python3"))
    assert code == 1
    assert "Longhaul must be at the same place on each node, or in a --container" in said


def test_no_python_is_taken_from_path(allocation: Allocation) -> None:
    for name in ("python", "python3"):
        allocation.has(name, 'touch "$HERE/wrong"; exit 9')
    code, _ = allocation.run(allocation.job(), DRIVER_CODE="0")
    assert code == 0
    assert not (allocation.here / "wrong").exists()


APPTAINER = (
    'printf "%s\\n" "$*" >> "$HERE/apptainer"; while [[ $1 != *.sif ]]; do shift; done; shift; exec "$@"'
)


def test_in_a_container_all_of_longhauls_python_is_the_images(allocation: Allocation) -> None:
    allocation.has("apptainer", APPTAINER)
    allocation.has("python-of-image", (allocation.here / "bin/python-of-ours").read_text(encoding="utf-8"))
    job = allocation.job(image="/i m/lh.sif", python="python-of-image", store_folder=str(allocation.here))
    code, said = allocation.run(job, DRIVER_CODE="0")
    assert code == 0, said
    calls = allocation.seen("apptainer").splitlines()
    matches = [
        re.match(r"exec .*--bind /tmp/lhs-\d+-\w+ .*--pwd \S+ /i m/lh\.sif python-of-image -m (\S+)", call)
        for call in calls
    ]
    in_image = Counter(match[1] for match in matches if match)
    assert in_image.total() == len(calls)
    # The job may end a container whose Python has not come to its first line.
    started = Counter(allocation.seen("started").split())
    assert started and started <= in_image
    assert f"--bind {allocation.here}" in calls[-1]


def test_a_container_without_apptainer_is_one_line(allocation: Allocation, tmp_path: Path) -> None:
    """Also where this machine has one."""
    (programs := tmp_path / "programs").mkdir()
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).glob("*"):
            (link := programs / program.name).unlink(missing_ok=True)
            link.symlink_to(program)
    for name in ("apptainer", "singularity"):
        (programs / name).unlink(missing_ok=True)
    path = f"{allocation.here}/bin:{programs}"
    code, said = allocation.run(allocation.job(image="lh.sif", python="python3"), PATH=path)
    assert code == 1
    assert "neither apptainer nor singularity is on PATH" in said
