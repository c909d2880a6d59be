"""What another user of this machine, or somebody on its network, can do to a Ray that we start: nothing.

Nor does anybody read in its logs what a spec's ``environment`` holds.
"""

import ipaddress
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray
from ray.train import RunConfig, ScalingConfig

from cluster.cluster_file import read_cluster
from cluster.live import live_inventory
from cluster.local_ray.marked_directory import check_closed, marked_directory
from cluster.local_ray.private_ray import private_ray
from cluster.local_ray.simulated import mixed_cluster
from cluster.local_ray.variables import variables
from jobs.execution.messages import SessionLimits
from jobs.launch.ray_train.cells import launch
from jobs.launch.ray_train.trainer import Trainer, train_settings
from tests.live.command_line import QUICK, ROOT, below, running, sweep_command, write_spec
from tests.live.listening import ENDLESS, Listener, job, session, workers
from tests.live.runs.test_train import LIGHT, RUN, num_commits, train_command

LIMITS = SessionLimits(schedule_timeout_s=120, cell_timeout_s=300, hang_timeout_s=60)
DEADLINE_S = 120
NOBODY = 65534
# Where the host's name has an address of the network, gloo would take that.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# It starts after its node, so that its socket comes late. No other agent does.
AGENT = "ray::RuntimeEnvAgent"
RANK = "ray::RayTrainWorker"
SECRET = "wandb-0123456789-nobody-may-read-this"
as_nobody = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# What a stranger tries on each folder: to read it, to put an address of her own there, to plant a link.
STRANGER = """
import json, os, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
done = []
for folder in sys.argv[2:]:
    for name, attack in {
        "list": lambda: os.listdir(folder),
        "write": lambda: open(os.path.join(folder, "runtime_env_agent_port_x"), "w"),
        "link": lambda: os.symlink("/etc/passwd", os.path.join(folder, "longhaul-stacks-1.txt")),
        "replace": lambda: os.rename(folder, folder + ".old"),
    }.items():
        try:
            attack()
        except OSError:
            continue
        done.append(f"{name} {folder}")
print(json.dumps(done))
"""


def attacks_that_worked(*folders: Path) -> list[str]:
    command = [sys.executable, "-c", STRANGER, str(NOBODY), *map(str, folders)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def session_folder() -> Iterator[Path]:
    as_it_is, sys.argv = (
        sys.argv,
        ["longhaul", "train", "spec.yaml", "--set", f"environment.API_KEY={SECRET}"],
    )
    try:
        with private_ray(num_cpus=2):
            yield Path(ray._private.worker._global_node.get_session_dir_path())
    finally:
        sys.argv = as_it_is


@as_nobody
def test_another_user_reaches_nothing_that_ray_believes_by_its_name(session_folder: Path) -> None:
    inside = [session_folder, *(path for path in session_folder.rglob("*") if path.is_dir())]
    assert {"logs", "sockets", "runtime_resources"} <= {path.name for path in inside}
    # Ray leaves all of it open, so the folder around it is what keeps others out.
    assert stat.S_IMODE(session_folder.stat().st_mode) == 0o777
    assert attacks_that_worked(session_folder.parent.parent, session_folder.parent, *inside) == []


@as_nobody
def test_the_attacks_work_on_an_open_folder(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "open").mkdir()
        for path in (folder, folder / "open"):
            path.chmod(0o777)
        done = attacks_that_worked(folder / "open")
    assert [attack.split()[0] for attack in done] == ["list", "write", "link", "replace"]


def test_a_folder_that_others_may_enter_is_refused() -> None:
    with marked_directory() as root:
        check_closed(root)
        Path(root).chmod(0o750)
        with pytest.raises(PermissionError, match=r"found mode 750 .* expected a folder with mode 700"):
            check_closed(root)


@as_nobody
def test_a_folder_of_somebody_else_is_refused() -> None:
    with marked_directory() as root:
        os.chown(root, NOBODY, NOBODY)
        with pytest.raises(PermissionError, match=f"owner {NOBODY}"):
            check_closed(root)


def test_a_private_ray_listens_on_loopback_alone(session_folder: Path) -> None:
    wait_until(lambda: AGENT in {name for name, _ in listening(family())})
    assert outside(family()) == []
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


@pytest.mark.parametrize("verb", ["train", pytest.param("sweep", marks=pytest.mark.soak)])
def test_all_that_a_command_starts_on_one_machine_listens_on_loopback_alone(
    verb: str, tmp_path: Path
) -> None:
    """From its first process to its last, ranks and the process that they are forked from included."""
    spec = write_spec(
        tmp_path, LIGHT if verb == "train" else QUICK.replace("world_size: [1]", "world_size: [2]")
    )
    command = train_command if verb == "train" else sweep_command
    seen: set[tuple[str, str]] = set()
    with running(command(spec, tmp_path / "store"), output=subprocess.DEVNULL) as process:
        while process.poll() is None:
            seen.update(listening(family(process.pid)))
            time.sleep(0.1)
        assert process.returncode == 0
    assert {"raylet", "gcs_server", AGENT, RANK} <= {name.partition(".")[0] for name, _ in seen}
    assert {end for end in seen if not is_loopback(end[1])} == set()


def test_rays_list_of_jobs_has_no_setting_of_a_driver(session_folder: Path) -> None:
    commands = [job["Entrypoint"] for job in ray._private.state.jobs()]
    assert commands == ["longhaul train spec.yaml"]


def test_ranks_of_one_machine_talk_through_loopback(session_folder: Path) -> None:
    found: list[tuple[str, str]] = []

    def look() -> None:
        for worker in workers():
            found.extend(addresses(worker))
        for worker in workers():
            worker.kill()

    (group,) = live_inventory().groups
    listener = Listener(act=look, act_at_ranks=2)
    launch({group.name: [session(group, job("a", group, world_size=2, steps=ENDLESS))]}, LIMITS, listener)
    assert listener.story() == ["start a", "crash a"]
    interfaces = [ray.get(variable_of_a_worker.remote(name)) for name in INTERFACES]
    assert interfaces == ["lo", "lo"]
    assert [address for _, address in found if is_loopback(address)]
    # The one on all addresses is where the ranks meet.
    assert [address for _, address in found if not is_loopback(address) and not is_anywhere(address)] == []


@pytest.mark.soak
def test_a_simulated_cluster_listens_on_loopback_alone_and_is_closed() -> None:
    with mixed_cluster(read_cluster(ROOT / "cluster" / "mixed.yaml")) as cluster:
        nodes = [process for process in psutil.process_iter() if is_of(process, cluster.root)]
        assert [process.name() for process in nodes].count("raylet") == 3
        assert outside(nodes) == []
        check_closed(str(cluster.root))


def test_a_worker_has_the_variables_of_its_run_and_no_log_has_them(
    session_folder: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"

    def tell() -> None:
        told.write_text(json.dumps([os.environ["API_KEY"], os.environ["MALLOC_ARENA_MAX"]]))

    with variables(train_settings(60)):
        Trainer(
            tell,
            environment={"API_KEY": SECRET, "MALLOC_ARENA_MAX": "2"},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name="r", storage_path=str(tmp_path / "storage")),
        ).fit()
    assert json.loads(told.read_text()) == [SECRET, "2"]
    assert that_tell_it(session_folder) == []


@pytest.mark.soak
def test_no_log_of_a_sweep_has_the_variables_of_its_spec(session_folder: Path) -> None:
    (group,) = live_inventory().groups
    cells = session(group, job("a", group, world_size=1, steps=ENDLESS))
    cells = replace(cells, environment={**cells.environment, "API_KEY": SECRET})
    seen: list[str] = []

    def look() -> None:
        seen.extend(command_lines(workers()))
        for worker in workers():
            worker.kill()

    listener = Listener(act=look)
    launch({group.name: [cells]}, LIMITS, listener)
    assert listener.story() == ["start a", "crash a"]
    assert seen and not any(SECRET in line for line in seen)
    assert that_tell_it(session_folder) == []


@pytest.mark.soak
def test_no_log_of_a_long_run_has_its_variables_but_who_forks_its_workers_has(tmp_path: Path) -> None:
    folder, store = Path(tempfile.mkdtemp(prefix="lht-", dir="/tmp")), tmp_path / "store"
    text = RUN.replace("steps: 60", "steps: 100000").replace("world_size: 2", "world_size: 1")
    spec = write_spec(tmp_path, text + f"environment: {{API_KEY: {SECRET}}}\n")
    try:
        with running(train_command(spec, store), output=subprocess.DEVNULL, TMPDIR=str(folder)) as process:
            wait_until(lambda: bool(below(process.pid, "jobs.launch.forkserver.server")))
            (parent, *_) = below(process.pid, "jobs.launch.forkserver.server")
            wait_until(lambda: num_commits(store) >= 1)
            assert parent.environ()["API_KEY"] == SECRET
            lines = command_lines(psutil.Process(process.pid).children(recursive=True))
            told = that_tell_it(folder) + that_tell_it(store)
            (log,) = folder.glob("lh-*/ray/session_2*/logs/raylet.out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert log
    assert lines and not any(SECRET in line for line in lines)
    assert told == []


def that_tell_it(folder: Path) -> list[str]:
    """Files with the secret in them; those that go meanwhile have none."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert paths
    told = []
    for path in paths:
        with suppress(FileNotFoundError):
            told += [str(path)] if SECRET.encode() in path.read_bytes() else []
    return told


def command_lines(processes: Sequence[psutil.Process]) -> list[str]:
    return [" ".join(process.cmdline()) for process in processes if process.is_running()]


@ray.remote(num_cpus=0)
def variable_of_a_worker(name: str) -> str | None:
    return os.environ.get(name)


def is_of(process: psutil.Process, root: Path) -> bool:
    try:
        return process.environ().get("LONGHAUL_PRIVATE_RAY") == str(root)
    except psutil.Error:
        return False


def family(pid: int | None = None) -> list[psutil.Process]:
    """A driver, this one if none is named, and all that its Ray consists of; nothing once it has ended."""
    try:
        driver = psutil.Process(pid)
        return [driver, *driver.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def outside(processes: list[psutil.Process]) -> list[str]:
    return [f"{name} {address}" for name, address in listening(processes) if not is_loopback(address)]


def listening(processes: list[psutil.Process]) -> list[tuple[str, str]]:
    return [end for process in processes for end in addresses(process, only=psutil.CONN_LISTEN)]


def addresses(process: psutil.Process, only: str | None = None) -> list[tuple[str, str]]:
    """Of its own ends; none of a process that has just ended."""
    try:
        ends = [end for end in process.net_connections(kind="inet") if only in (None, end.status)]
        return [(process.name().strip(), end.laddr.ip) for end in ends if end.laddr]
    except psutil.Error:
        return []


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def is_anywhere(address: str) -> bool:
    return ipaddress.ip_address(address).is_unspecified


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
