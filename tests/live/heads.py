"""A Ray cluster of one head that somebody else started: for what must join it and never end it."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 120
_MOST_SAID = 2000
# Above those that Ray gives its workers, below those that the system gives connections.
_PORTS = range(20_000, 32_768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """``address`` is for drivers, ``dashboard`` for ``ray job submit``."""

    address: str
    dashboard: str
    ray: str


@contextmanager
def ray_head(*flags: str, dashboard_port: int | None = None, **environment: str) -> Iterator[Head]:
    """``ray start --head --block`` on loopback with ``flags``, gone with all its processes after it; an error
    is told with what its jobs said.
    """
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    assert ray is not None, "there is no `ray` beside this Python"
    # A short one: Ray's sockets are below it, and their paths are bounded.
    folder = tempfile.mkdtemp(prefix="lhh-", dir="/tmp")
    port, free, for_clients, for_agent = _free_ports(4)
    dashboard_port = dashboard_port or free
    head = Head(address=f"127.0.0.1:{port}", dashboard=f"http://127.0.0.1:{dashboard_port}", ray=ray)
    command = [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}", f"--temp-dir={folder}"]
    command += [f"--ray-client-server-port={for_clients}", f"--dashboard-agent-listen-port={for_agent}"]
    command += ["--disable-usage-stats", *flags]
    log = Path(folder) / "head.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(environment), stdout=output, stderr=output, start_new_session=True
        )
    try:
        # Who submits a job is refused while there is no agent to start it.
        for awaited in (dashboard_port, for_agent):
            _wait_for(awaited, process, log)
        yield head
    except Exception as error:
        error.add_note(_said_of_jobs(Path(folder)))
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        _end_strays(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _said_of_jobs(folder: Path) -> str:
    logs = folder / "session_latest" / "logs"
    found = [*logs.glob("job-driver-*.log"), *logs.glob("dashboard_JobHead.log")]
    return "\n".join(
        f"{path.name}:\n{path.read_text(errors='replace')[-_MOST_SAID:]}" for path in sorted(found)
    )


def _environment(extra: dict[str, str]) -> dict[str, str]:
    """The job's ``python`` is the first on the PATH of the process that starts Ray: ours goes first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "RAY_AUTH_MODE": "disabled", **extra}


def _free_ports(num: int) -> list[int]:
    """All at once, so that no two are the same; none that the system may give a connection before Ray listens
    there. A head whose agent finds its port taken never takes a job.
    """
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        while len(listeners) < num:
            listener = stack.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", random.choice(_PORTS)))
                listeners.append(listener)
        return [int(listener.getsockname()[1]) for listener in listeners]


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"the head did not start: {log.read_text()[-2000:]}")


def _end_strays(folder: str) -> None:
    """Workers have sessions of their own, which the group's end does not reach; they name the folder."""
    import psutil

    for process in psutil.process_iter(["cmdline", "environ"]):
        texts = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        if any(folder in text for text in texts) and process.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                process.kill()
