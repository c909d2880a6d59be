"""Writes the script of a Slurm job. Pure.

The script holds the spec itself, and Slurm keeps the script: once it is submitted, the job needs neither this
file system nor the spec's file. Every text of the user is quoted for bash.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jobs.slurm.options import directive

_SPEC_FILE = "spec.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes of one group. Several parts make a heterogeneous job. An empty ``group`` is the vendor's name."""

    group: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that differs between two scripts. ``store_folder`` is empty for object storage, ``tree`` if
    Longhaul is installed, ``image`` without a container. ``settings`` are keys and values in turn, which must
    be on no command line.
    """

    kind: str
    run: str
    job_name: str
    spec_text: str
    arguments: tuple[str, ...]
    store: str
    store_folder: str
    directory: str
    python: str
    tree: str
    image: str
    vendor: str
    parts: tuple[Part, ...]
    time: str | None
    time_s: int | None
    stop_before_s: int
    submit: str
    settings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def script(job: Job) -> str:
    """The whole text of the job's script."""
    common = files("jobs.slurm").joinpath("job.sh").read_text(encoding="utf-8")
    return "\n".join(
        ["#!/usr/bin/env bash", *_directives(job), *_introduction(), *_settings(job), "", common]
    )


def _directives(job: Job) -> list[str]:
    lines: list[str] = []
    for number, part in enumerate(job.parts):
        lines += ["#SBATCH hetjob"] if number else _of_the_job(job)
        lines += [directive([f"--time={job.time}"])] if job.time else []
        lines += [directive(words) for words in (job.options, part.options) if words]
    return lines


def _of_the_job(job: Job) -> list[str]:
    """Of a heterogeneous job only the first part has a script, a log, and whom to signal."""
    lines = [
        directive([f"--job-name={job.job_name}"]),
        "#SBATCH --output=%x-%j.log --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:USR1@{job.stop_before_s}",
    ]
    # Two jobs of one run take turns. The parts of a heterogeneous job would wait for each other for ever.
    return lines if len(job.parts) > 1 else [*lines, "#SBATCH --dependency=singleton"]


def _introduction() -> list[str]:
    return [
        "#",
        "# `longhaul slurm` has written this; docs/slurm.md says what it does. Submit it with sbatch.",
        "set -uo pipefail",
    ]


def _settings(job: Job) -> list[str]:
    return [
        f"readonly KIND={job.kind} RUN={shlex.quote(job.run)} SPEC_FILE={_SPEC_FILE}",
        f"readonly STORE={shlex.quote(job.store)}",
        f"readonly STORE_FOLDER={shlex.quote(job.store_folder)}",
        f"readonly DIRECTORY={shlex.quote(job.directory)}",
        f"readonly PYTHON={shlex.quote(job.python)} TREE={shlex.quote(job.tree)}",
        f"readonly SUBMIT={shlex.quote(job.submit)}",
        f"readonly IMAGE={shlex.quote(job.image)}",
        f"readonly TIME_S={job.time_s or shlex.quote('')}",
        f"readonly NODE_VENDORS=({_words([job.vendor] * len(job.parts))})",
        f"readonly NODE_GROUPS=({_words([part.group for part in job.parts])})",
        f"readonly ARGUMENTS=({_words(job.arguments)})",
        f"readonly SETTINGS=({_words(job.settings)})",
        f"readonly SPEC={shlex.quote(job.spec_text)}",
    ]


def _words(texts: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, texts))
