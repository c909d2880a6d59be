"""``longhaul slurm`` writes a job's script into a folder of this user alone, and submits it if asked."""

import argparse
import hashlib
import json
import os
import secrets
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, run_command
from jobs.commandline.output import printable
from jobs.commandline.set_values import is_secret_setting, seen_from_elsewhere
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError, nearest
from jobs.slurm.options import options_of, seconds_of, stop_before
from jobs.slurm.script import Job, Part, script
from jobs.slurm.work import Work, read_work

_TREE = Path(__file__).resolve().parents[2]
_SUBMIT_TIMEOUT_S = 120.0


class NotSubmitted(Exception):
    """Slurm did not take the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """``job_id`` is None if the script was only written. ``log`` is where the job writes what happens."""

    name: str
    script: str
    submit: str
    job_name: str
    job_id: str | None
    log: str


def slurm(args: argparse.Namespace) -> int:
    return run_command("slurm", lambda: _slurm(args), {SpecError: EXIT_USAGE, NotSubmitted: EXIT_FAILED})


def _slurm(args: argparse.Namespace) -> int:
    work = read_work(args.spec, args.set, args.run)
    place = (args.to or Path("longhaul-slurm") / work.name).absolute() / "job.sh"
    job = job_of(args, work, place)
    _write(job, place)
    job_id = _submit(place) if args.submit else None
    written = Written(
        name=work.name,
        script=str(place),
        submit=job.submit,
        job_name=job.job_name,
        job_id=job_id,
        log=str(place.parent / f"{job.job_name}-{job_id or 'JOB'}.log"),
    )
    print(json.dumps(asdict(written), indent=1) if args.json else printable(_text(written)))
    return EXIT_OK


def job_of(args: argparse.Namespace, work: Work, place: Path) -> Job:
    """What the script at ``place`` says, from the flags and the spec."""
    store = args.store or work.store
    is_folder = "://" not in store
    store = str(store_base() / Path(store).expanduser()) if is_folder else store
    time_s = seconds_of(args.time)
    job = Job(
        kind=work.kind,
        run=work.name,
        job_name=_job_name(work, store),
        spec_text=work.text,
        arguments=_arguments(args, work, store),
        settings=_settings(args) if _has_secret(args) else (),
        store=store,
        store_folder=store if is_folder else "",
        directory=str(Path.cwd()),
        python=args.python or ("python3" if args.container else sys.executable),
        tree="" if args.container else str(_TREE),
        image=args.container or "",
        vendor=args.vendor or "",
        parts=_parts(args, work),
        time=args.time,
        time_s=time_s,
        stop_before_s=stop_before(args.stop_before, time_s),
        submit=f"cd {shlex.quote(str(place.parent))} && sbatch {place.name}",
        options=tuple(word for text in args.sbatch for word in options_of(text, "--sbatch")),
    )
    _check_container(job)
    return job


def _job_name(work: Work, store: str) -> str:
    """The same for all jobs of one run: Slurm then lets only one of them run at a time."""
    digest = hashlib.sha256(f"{work.kind} {store}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{work.name}.{digest[:6]}"


def _arguments(args: argparse.Namespace, work: Work, store: str) -> tuple[str, ...]:
    run = ["--run", work.name, "--keep"] if work.kind == "train" else []
    shown = () if _has_secret(args) else map(seen_from_elsewhere, args.set)
    return ("--store", store, *run, *(word for setting in shown for word in ("--set", setting)))


def _has_secret(args: argparse.Namespace) -> bool:
    return any(map(is_secret_setting, args.set))


def _settings(args: argparse.Namespace) -> tuple[str, ...]:
    """All of them, since a later one may change what an earlier one has set."""
    pairs = (seen_from_elsewhere(setting).partition("=") for setting in args.set)
    return tuple(word for path, _, value in pairs for word in (path, value))


def _parts(args: argparse.Namespace, work: Work) -> tuple[Part, ...]:
    counts = (("--nodes", args.nodes), ("--gpus-per-node", args.gpus), ("--cpus-per-task", args.cpus))
    size = tuple(f"{flag}={count}" for flag, count in counts if count)
    # One task a node: else Slurm counts the cores for each task anew.
    size = (*size, "--ntasks-per-node=1")
    if not args.group:
        return (Part(group=_only_group(work), options=size),)
    parts: list[Part] = []
    for text in args.group:
        group, _, options = text.partition("=")
        if group in [part.group for part in parts]:
            raise SpecError([f"--group {group}: is given twice; a group is one part of the job"])
        parts.append(Part(group=group, options=(*size, *options_of(options, f"--group {group}"))))
    _check_groups([part.group for part in parts], work)
    return tuple(parts)


def _only_group(work: Work) -> str:
    if len(work.groups) > 1 and work.kind == "train":
        raise SpecError(
            [f"group: the spec names {', '.join(work.groups)}; say by --group which one this job's nodes are"]
        )
    if len(work.groups) > 1:
        raise SpecError(
            [f"groups: the spec names {', '.join(work.groups)}; give each its nodes by --group NAME=OPTIONS"]
        )
    return work.groups[0] if work.groups else ""


def _check_groups(given: list[str], work: Work) -> None:
    from jobs.spec_schema.file import check_plain_name

    for group in given:
        check_plain_name(group, "--group")
    if work.kind == "train" and not set(given).isdisjoint(work.groups):
        return
    for wanted in work.groups:
        if wanted not in given:
            raise SpecError(
                [f"--group: the spec wants {wanted!r}, found {', '.join(given)}{nearest(wanted, given)}"]
            )


def _check_container(job: Job) -> None:
    for place in (job.store_folder, job.directory) if job.image else ():
        if any(letter in place for letter in ":,"):
            raise SpecError([f"--container: {place!r} has : or ,; Apptainer can't mount such a folder"])


def _write(job: Job, place: Path) -> None:
    """Writes the script as a whole or not at all, into a folder that is closed to others from then on."""
    text, folder = script(job), place.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (owner := folder.stat().st_uid) != os.geteuid():
            raise SpecError([f"--to: {folder} belongs to user {owner}, who could exchange the script"])
        folder.chmod(0o700)
        # Others may have put files into the folder before it was closed: no name can be foreseen.
        new = folder / f"{place.name}.{secrets.token_hex(8)}"
        new.touch(mode=0o600, exist_ok=False)
        new.write_text(text, encoding="utf-8", errors="surrogateescape")
        new.replace(place)
    except OSError as error:
        raise SpecError([f"--to: {folder} can't be written ({error.strerror})"]) from None


def _submit(place: Path) -> str:
    """Submits the script and returns the job's number."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", place.name],
            cwd=place.parent,
            umask=0o077,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SUBMIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SpecError([f"--submit: there is no sbatch on PATH; {place} is written"]) from None
    except subprocess.TimeoutExpired:
        raise NotSubmitted(f"sbatch has not answered within {_SUBMIT_TIMEOUT_S:.0f} s; see squeue") from None
    if done.returncode != 0:
        raise NotSubmitted(f"Slurm did not take {place}: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]


def _text(written: Written) -> str:
    if written.job_id is None:
        return f"{written.name}: wrote {written.script}\nsubmit it: {written.submit}"
    return (
        f"{written.name}: submitted as job {written.job_id}; it queues itself again until it is done\n"
        f"follow it: tail -F {shlex.quote(written.log)}\n"
        f"end it:    scancel {written.job_id}  (it saves first)"
    )
