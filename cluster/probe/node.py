"""Measures everything about one node. A failed measurement is reported and does not prevent the others."""

import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TypeVar

import torch

from cluster.probe import device, door, host
from cluster.probe.kernels import known
from cluster.probe.node_facts import CopyRate, GemmRate, KernelDigest, NodeFacts, Question
from cluster.this_machine import num_cpus, this_machine

Measured = TypeVar("Measured")


def probe_node(question: Question) -> NodeFacts:
    """Measures for some seconds; every part is bounded in time."""
    found = device.platform_found()
    here = device.devices()
    problems: list[str] = []
    disk = _tried("disk", problems, partial(host.measure_disk, Path(question.folder or gettempdir())))
    with device.one_thread(question.is_one_core):
        gemms = [rate for one in here for rate in _gemms(one, question, problems)]
    with device.one_thread(found == "cpu"):
        kernels = [one for place in here for one in _kernels(place, problems)]
    return NodeFacts(
        host=platform.node(),
        platform=found,
        device=door.name_of(here[0]),
        num_devices=num_cpus() if found == "cpu" else len(here),
        driver=host.kernel_driver(found),
        visible=host.visible_devices(),
        versions=host.versions() | {"torch": str(torch.__version__)},
        memory_bytes=this_machine().groups[0].nodes[0].memory_bytes or 0,
        shm_bytes=host.shared_memory_bytes(),
        gemms=tuple(gemms),
        copies=tuple(_copies(here, problems)),
        model=known.model_of(here[0]),
        kernels=tuple(kernels),
        disk=disk,
        telemetry=_tried("telemetry", problems, partial(device.telemetry, here[0])),
        problems=tuple(problems),
    )


def _gemms(one: torch.device, question: Question, problems: list[str]) -> list[GemmRate]:
    rates = _tried("matrix product", problems, lambda: list(device.gemm_rates(one, question.shapes)))
    return rates or []


def _kernels(one: torch.device, problems: list[str]) -> list[KernelDigest]:
    return _tried("known kernels", problems, lambda: list(known.kernel_digests(one))) or []


def _copies(here: list[torch.device], problems: list[str]) -> Iterator[CopyRate]:
    for one in here:
        rate = _tried("copy to the device", problems, partial(device.copy_rate, one))
        if rate is not None:
            yield rate


def _tried(what: str, problems: list[str], measure: Callable[[], Measured]) -> Measured | None:
    """Runs a measurement and notes its failure. Libraries raise errors without a common type here, and a
    broken device must not hide the rest.
    """
    try:
        return measure()
    except Exception as error:
        problems.append(f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return None
