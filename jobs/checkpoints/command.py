"""``longhaul checkpoints``: each verb reads a run's log, does one thing, and prints the result."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from socket import gethostname
from typing import Any

from checkpointing.errors import Corrupt, NothingToResume, Unfit
from checkpointing.generations.audit import audit_generations, audit_log, repair_hint
from checkpointing.generations.choice import find
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.repository import Repository, existing_run, no_such_run
from checkpointing.log.history import Generation, Pin, Unpin
from checkpointing.stores.contract import Store, Unavailable
from checkpointing.stores.opening import open_store
from jobs.checkpoints.adopting import Adopted, adopt_named, rebuild_log
from jobs.checkpoints.details import portray
from jobs.checkpoints.listing import CheckpointListing, policy_of, take_inventory
from jobs.checkpoints.text import (
    finding_text,
    garbage_text,
    inventory_text,
    portrait_text,
    size_text,
    verdict_text,
)
from jobs.checkpoints.verification import ShareVerdict, judge
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    OF_STORES,
    run_command,
)
from jobs.commandline.output import printable
from jobs.commandline.store_location import store_base
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.commandline.usage_error import SpecError
from reporting.analysis.formatting import counted


def checkpoints(args: argparse.Namespace) -> int:
    with waits_told("checkpoints"):
        return run_command("checkpoints", lambda: _do(args), _exit_codes(args.verb))


def _do(args: argparse.Namespace) -> int:
    store = _store(args)
    # These also work on a run whose log is gone.
    if args.verb == "fsck":
        return (_rebuild if args.rebuild else _fsck)(args, Repository(store, args.run))
    if args.verb == "adopt":
        return _adopt(args, Repository(store, args.run))
    repository = existing_run(store, args.run)
    match args.verb:
        case "list":
            return _list(args, repository)
        case "show":
            return _show(args, repository)
        case "verify":
            return _verify(args, repository)
        case "pin" | "unpin":
            return _pin(args, repository)
        case "gc":
            return _gc(args, repository)
        case "export":
            return _export(args, repository)
        case unknown:
            raise AssertionError(f"no verb {unknown!r}: argparse lets only known ones through")


def _store(args: argparse.Namespace) -> Store:
    """Returns the store. Verbs that only show something don't wait for minutes for it."""
    if args.verb in ("list", "show"):
        return open_to_read(args.store, args.wait)
    return open_store(args.store, base=store_base())


def _exit_codes(verb: str) -> dict[type[Exception], int]:
    """The exit code of each error. ``verify`` and ``fsck`` are undecided if the store is unavailable."""
    codes = {SpecError: EXIT_USAGE, NothingToResume: EXIT_USAGE, Unfit: EXIT_USAGE, **OF_STORES}
    away = EXIT_UNDECIDED if verb in ("verify", "fsck") else EXIT_FAILED
    return {**codes, Corrupt: EXIT_FAILED, OSError: EXIT_FAILED, Unavailable: away}


def _list(args: argparse.Namespace, repository: Repository) -> int:
    inventory, now_s = take_inventory(repository), time.time()
    _say(args, _inventory_json(inventory, now_s), inventory_text(inventory, now_s=now_s))
    return EXIT_OK


def _inventory_json(inventory: CheckpointListing, now_s: float) -> dict[str, Any]:
    rows = [
        {
            **asdict(row.generation),
            "age_s": max(0.0, now_s - row.generation.committed_s),
            "where": row.places,
            "kept_for": row.kept_for,
        }
        for row in inventory.rows
    ]
    called = {word: row.generation.name for row in inventory.rows for word in row.called}
    return {
        "run": inventory.run,
        "store": inventory.store,
        "generations": rows,
        **{word: called.get(word) for word in ("latest", "backup", "best")},
        "num_bytes": inventory.num_bytes,
        "retention": asdict(inventory.policy),
    }


def _show(args: argparse.Namespace, repository: Repository) -> int:
    portrait = portray(repository, _found(args, repository))
    _say(args, asdict(portrait), portrait_text(portrait))
    return EXIT_OK if portrait.problem is None else EXIT_FAILED


def _verify(args: argparse.Namespace, repository: Repository) -> int:
    chosen = (_found(args, repository),) if args.what else repository.view.generations
    verdicts = []
    for verdict in judge(repository, chosen):
        verdicts.append(verdict)
        if args.quarantine:
            _quarantine(repository, verdict)
        if not args.json:
            print(printable(verdict_text(verdict, is_quarantined=args.quarantine)), flush=True)
    num_problems = sum(verdict.problem is not None for verdict in verdicts)
    total = f"{counted(len(verdicts), 'generation')} read back, {num_problems} with a problem"
    _say(args, {"run": args.run, "generations": [asdict(verdict) for verdict in verdicts]}, total)
    if any(verdict.is_corrupt for verdict in verdicts):
        return EXIT_FAILED
    return EXIT_UNDECIDED if num_problems else EXIT_OK


def _quarantine(repository: Repository, verdict: ShareVerdict) -> None:
    if verdict.is_corrupt and verdict.generation.quarantined is None:
        repository.quarantine(verdict.generation.name, f"read back: {verdict.problem}")


def _pin(args: argparse.Namespace, repository: Repository) -> int:
    name = _found(args, repository).name
    entry = Pin(name=name) if args.verb == "pin" else Unpin(name=name)
    after = repository.append(entry).generation(name)
    if after is None:
        raise NothingToResume(f"{name} was given up by the run in this moment")
    done = "pinned" if after.is_pinned else "not pinned"
    _say(args, {"name": name, "is_pinned": after.is_pinned}, f"{name}: {done}")
    return EXIT_OK


def _gc(args: argparse.Namespace, repository: Repository) -> int:
    garbage = find_garbage(repository, now=datetime.now(UTC))
    refused = remove(repository, garbage, with_unnamed=args.unnamed) if args.yes else {}
    facts = {
        "num_objects": garbage.num_objects,
        "num_bytes": garbage.num_bytes,
        "not_deleted": {name: str(error) for name, error in refused.items()},
        "is_deleted": args.yes,
        "generations": [asdict(one) for one in garbage.remainders],
        "uploads": [{"name": one.name, "started": one.started.isoformat()} for one in garbage.uploads],
        "spared": garbage.spared,
        "unnamed": [asdict(one) for one in garbage.unnamed],
        "are_unnamed_deleted": args.yes and args.unnamed,
    }
    text = garbage_text(garbage, is_done=args.yes, with_unnamed=args.unnamed, refused=refused)
    _say(args, facts, text)
    return EXIT_FAILED if refused else EXIT_OK


def _fsck(args: argparse.Namespace, repository: Repository) -> int:
    if repository.refresh().term == 0 and not repository.stored_generations():
        raise no_such_run(repository.store, repository.run)
    found = [*audit_log(repository.store, repository.run), *audit_generations(repository)]
    is_mended = args.yes and any(one.is_mendable for one in found)
    if is_mended:
        repair_hint(repository.store, repository.run)
    facts = [{**asdict(one), "is_mended": is_mended and one.is_mendable} for one in found]
    lines = [finding_text(one, is_mended=is_mended and one.is_mendable) for one in found]
    num_wrong = sum(one["is_wrong"] and not one["is_mended"] for one in facts)
    sums = f"{counted(len(repository.view.generations), 'generation')} in the log"
    verdict = f"{num_wrong} wrong" if num_wrong else "all is well"
    _say(args, {"run": args.run, "findings": facts}, "\n".join([*lines, f"{sums}: {verdict}"]))
    return EXIT_FAILED if num_wrong else EXIT_OK


def _adopt(args: argparse.Namespace, repository: Repository) -> int:
    return _end_adopting(args, adopt_named(repository, args.names, _teller(args)))


def _rebuild(args: argparse.Namespace, repository: Repository) -> int:
    return _end_adopting(args, rebuild_log(repository, gethostname(), _teller(args)))


def _end_adopting(args: argparse.Namespace, adopted: Adopted) -> int:
    _say(args, adopted.as_data(args.run), adopted.text)
    return adopted.exit_code


def _teller(args: argparse.Namespace) -> Callable[[str], None]:
    def tell(line: str) -> None:
        if not args.json:
            print(printable(line), flush=True)

    return tell


def _export(args: argparse.Namespace, repository: Repository) -> int:
    from jobs.checkpoints.export import export

    found = _found(args, repository)
    done = export(repository, found, args.to, dtype=args.dtype)
    facts = {"name": found.name, "to": str(args.to), **asdict(done)}
    size = f"{counted(done.num_tensors, 'tensor')}, {size_text(done.num_bytes)} of {done.dtype}"
    _say(args, facts, f"{found.name}: {size} in {counted(len(done.files), 'file')} below {args.to}")
    return EXIT_OK


def _found(args: argparse.Namespace, repository: Repository) -> Generation:
    return find(repository.view, args.what, policy_of(repository))


def _say(args: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts, indent=1) if args.json else printable(text))
