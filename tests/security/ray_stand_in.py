"""What stands for ``ray`` where our files start it, and how each of them does: as its launcher would."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.security.attack import Product, end, own

# Ray opens its folder to everybody, and unpacks the code of jobs into it.
_RAY = """\
#!/bin/sh
[ "$1" = start ] || exit 0
folder=$TMPDIR/ray
for word; do case $word in --temp-dir=*) folder=${word#--temp-dir=};; esac; done
mkdir -p "$folder" && chmod 777 "$folder" && echo mine >"$folder/code_of_a_job.py"
chmod 666 "$folder/code_of_a_job.py"
echo "mode=${RAY_AUTH_MODE:-disabled}" >"$STARTED.new"
echo "folder=$folder" >>"$STARTED.new"
mv "$STARTED.new" "$STARTED"
"""
_PLACES = (
    ("longhaul-head.service", ""), ("longhaul-worker.service", ""), ("start_worker.sh", ""),
    ("cluster.yaml", "head"), ("cluster.yaml", "worker"),
)  # fmt: skip
_PATIENCE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """``mode`` is how the Ray that was started asks for its token, None if none was started."""

    name: str
    mode: str | None
    folder: Path
    said: str


@contextmanager
def starts(its: Product, **settings: str) -> Iterator[list[Started]]:
    """Each file of the tree that starts Ray, carried out. ``settings`` are what the operator set for all."""
    programs = its.home / "bin"
    programs.mkdir()
    (programs / "ray").write_text(_RAY, encoding="utf-8")
    (programs / "ray").chmod(0o755)
    common = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "LONGHAUL_HEAD": "127.0.0.1:6379",
        "RAY_HEAD_IP": "127.0.0.1",
        "LONGHAUL_VENDOR": "cpu",
    }
    yield [
        _carried_out(its, f"{name} {role}".strip(), line, common | {**variables} | settings)
        for name, role in _PLACES
        for line, variables in [_start(its, name, role, programs)]
    ]


def _start(its: Product, name: str, role: str, programs: Path) -> tuple[str, Mapping[str, str]]:
    """A line for the shell, and what its launcher sets."""
    if name == "cluster.yaml":
        launcher = yaml.safe_load((its.tree / name).read_text(encoding="utf-8"))
        (line,) = [line for line in launcher[f"{role}_start_ray_commands"] if "ray start" in line]
        return line, {}
    if name.endswith(".sh"):
        return shlex.quote(str(its.tree / "cluster" / name)), {}
    return _of_unit(its, (its.tree / "cluster" / name).read_text(encoding="utf-8"), programs)


def _of_unit(its: Product, text: str, programs: Path) -> tuple[str, Mapping[str, str]]:
    """As systemd does, which makes the unit's cache and closes it as the unit says."""
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = " ".join(re.findall(r"^Environment=(.*)$", text, re.MULTILINE))
    variables = dict(word.partition("=")[::2] for word in shlex.split(words))
    variables.pop("PATH")
    caches = its.home / "cache"
    for cache in re.findall(r"^CacheDirectory=(.*)$", text, re.MULTILINE):
        (mode,) = re.findall(r"^CacheDirectoryMode=(.*)$", text, re.MULTILINE) or ["0755"]
        (caches / cache).mkdir(parents=True)
        (caches / cache).chmod(int(mode, 8))
        own(caches / cache, its.user)
        variables["CACHE_DIRECTORY"] = str(caches / cache)
    line = line.replace("/opt/longhaul/.venv/bin", str(programs)).replace("/var/cache", str(caches))
    return line.replace("/opt/longhaul", str(its.tree)), variables


def _carried_out(its: Product, name: str, line: str, variables: Mapping[str, str]) -> Started:
    """Until Ray was started or refused; what would start it again is ended."""
    told = its.home / f"started {name}".replace(" ", "-")
    said = its.home / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=its.home,
            env=its.environment(STARTED=str(told), **variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **its.identity,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            end_s = time.monotonic() + _PATIENCE_S
            while process.poll() is None and not told.exists() and time.monotonic() < end_s:
                time.sleep(0.05)
    finally:
        end(process)
    words = told.read_text(encoding="utf-8") if told.exists() else ""
    found = dict(line.partition("=")[::2] for line in words.splitlines())
    return Started(
        name=name, mode=found.get("mode"), folder=Path(found.get("folder", os.devnull)), said=its.said()
    )
