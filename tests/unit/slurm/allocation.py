"""An allocation without Slurm: fakes of srun, scontrol and Longhaul's Python around the real script of a job.

Each fake writes down what it was asked. The driver saves when it gets SIGTERM.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.slurm.script import Job, Part, script

DEADLINE_S = 60

_SRUN = r"""
printf '%s\n' "$*" >> "$HERE/srun"
while [[ $1 == --* ]]; do shift; done
SLURMD_NODENAME=n1 exec "$@"
"""
_SCONTROL = r"""
printf '%s\n' "$*" >> "$HERE/scontrol"
[[ $1 != requeue ]] || exit "${REQUEUES:-0}"
[[ $1 != show ]] || echo n1
"""
_PYTHON = r"""
tr '\0' '\n' < /proc/self/cmdline >> "$HERE/commands"; env >> "$HERE/environments"
printf '%s\n' "$2" >> "$HERE/started"
case $2 in
    cluster.slurm.head)
        cat "$RAY_AUTH_TOKEN_PATH" > "$HERE/token"
        echo >> "$HERE/heads"; : > "$HERE/joined"
        (($(wc -l < "$HERE/heads") > ${HEAD_FAILS:-0})) || { mkdir "$3/ray"; echo no room; exit 1; }
        mkdir "$3/ray"; echo 127.0.0.1:7 > "$3/ray/ray_current_cluster"
        sleep 1000 & wait ;;
    cluster.slurm.worker)
        cat "$RAY_AUTH_TOKEN_PATH" > "$HERE/token_of_node"
        echo >> "$HERE/joined"
        sleep 1000 & wait ;;
    cluster.slurm.wait_for_nodes)
        [[ -z ${NODES_FAIL:-} ]] || exit "$NODES_FAIL"
        until (($(wc -l < "$HERE/joined") >= $4)); do sleep 0.02; done ;;
    jobs.slurm.progress) cat "$HERE/saved" ;;
    jobs.cli)
        cat "$4" > "$HERE/spec"; printf '%s\n' "$@" > "$HERE/driver"; pwd > "$HERE/directory"
        for file in "${4%/*}"/setting-*; do
            [[ ! -e $file ]] || { stat -c %a "$file"; cat "$file"; }
        done > "$HERE/settings"
        trap '[[ -n ${SAVES_NOTHING:-} ]] || echo step 2 > "$HERE/saved"; exit "${STOP_CODE:-0}"' TERM
        # The job counts whole seconds.
        sleep "${DRIVES_AFTER_S:-0}"; touch "$HERE/drives"
        [[ -z ${DRIVER_CODE:-} ]] || exit "$DRIVER_CODE"
        while :; do sleep 1000 & wait $!; done ;;
esac
"""
_INSIDE = "inside() {\n"
_ASKS = 'kill -TERM "$DRIVER" 2>/dev/null\n'


class Allocation:
    """``here`` holds what the fakes saw."""

    def __init__(self, here: Path) -> None:
        self.here = here
        # A line of Bash that runs before each command of Longhaul's Python.
        self.before_inside = ""
        # One that runs once the driver was told to save.
        self.after_asking = ""
        # Others may run the same test on this machine.
        self.number = str(secrets.randbelow(10**9))
        (here / "bin").mkdir()
        (here / "tmp").mkdir()
        for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL), ("python-of-ours", _PYTHON)):
            self.has(name, text)
        (here / "saved").write_text("step 1\n", encoding="utf-8")

    def has(self, name: str, text: str) -> None:
        path = self.here / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
        path.chmod(0o755)

    def job(self, **changes: object) -> Job:
        settings: dict[str, object] = {
            "kind": "train",
            "run": "r",
            "job_name": "r.abc",
            "spec_text": "name: r",
            "arguments": ("--store", "s"),
            "store": "s",
            "store_folder": "",
            "directory": str(self.here),
            "python": str(self.here / "bin/python-of-ours"),
            "tree": "",
            "image": "",
            "vendor": "cpu",
            "parts": (Part(group="g", options=("--nodes=1",)),),
            "time": "10",
            "time_s": 600,
            "stop_before_s": 60,
            "submit": "sbatch job.sh",
        }
        return Job(**(settings | changes))  # type: ignore[arg-type]  # as the tests choose

    @contextmanager
    def running(self, job: Job, **variables: str) -> Iterator["subprocess.Popen[str]"]:
        place = self.here / "job.sh"
        text = script(job).replace(_INSIDE, f"{_INSIDE}    {self.before_inside}\n")
        text = text.replace(_ASKS, f"{_ASKS}{self.after_asking}\n")
        place.write_text(text, encoding="utf-8", errors="surrogateescape")
        process = subprocess.Popen(
            ["bash", place],
            env={**self._environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # Whatever outlives the job is in its group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=DEADLINE_S)

    def run(self, job: Job, *signals: signal.Signals, **variables: str) -> tuple[int, str]:
        """The job's exit code and what it said, after the signals have come while its driver was at work."""
        with self.running(job, **variables) as process:
            if signals:
                self.wait_for("drives")
            for number in signals:
                process.send_signal(number)
            said, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, said

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not (self.here / name).exists():
            assert time.monotonic() < deadline, f"{name} did not happen"
            time.sleep(0.02)

    def seen(self, name: str) -> str:
        path = self.here / name
        return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""

    def folders(self) -> list[Path]:
        """Those that the job has made, on its node and for its script."""
        return [*Path("/tmp").glob(f"lhs-{self.number}-*")]

    def is_queued_again(self) -> bool:
        return f"requeue {self.number}" in self.seen("scontrol")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.here}/bin:{os.environ['PATH']}",
            "HERE": str(self.here),
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
        }


def variables_of(text: str, names: Sequence[str]) -> list[str]:
    """What bash makes of the settings at the top of a script."""
    top, _, _ = text.partition("\nmain() {")
    show = "".join(f"\nprintf '%s\\0' \"${{{name}[@]}}\"" for name in names)
    done = subprocess.run(
        ["bash", "-c", top + show], capture_output=True, timeout=DEADLINE_S, check=True, env={"PATH": "/bin"}
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
