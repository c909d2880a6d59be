"""A run of the product over a private Ray of its own, which goes on until it is ended."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.security.attack import NotTried, Product, wait_until

RUN = """\
name: m
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 1000000
data: {samples: 64}
checkpoint: {every_steps: 2}
"""


@contextmanager
def training(its: Product, more: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    spec = its.home / "spec.yaml"
    spec.write_text(RUN + more, encoding="utf-8")
    with its.running("train", spec, "--store", its.home / "store") as process:
        yield process


def wait_for_saves(its: Product, process: "subprocess.Popen[bytes]") -> None:
    saves = its.home / "store/runs/m/gen"
    if not wait_until(lambda: saves.is_dir() and len(list(saves.iterdir())) >= 2, process):
        raise NotTried(f"no run to attack: {its.said()[-300:]}")


def family(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """It and all that it started; nothing once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return []


def rays_folders(folder: Path) -> list[Path]:
    """Those of sessions that this user can see; of each version."""
    return [*folder.glob("lh-*/session_2*"), *folder.glob("lh-*/*/session_2*")]
