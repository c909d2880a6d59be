"""Looks at this machine and at the store as an attacker would, and prints one line per finding."""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from cluster.yaml_file import YamlError, read_yaml
from jobs.commandline.exit_codes import EXIT_OK, EXIT_UNDECIDED
from jobs.commandline.output import one_line, printable
from jobs.commandline.store_location import store_base
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.doctor.examination import Finding
from jobs.doctor.security.bucket_trial import try_bucket
from jobs.doctor.security.checks import judge
from jobs.doctor.security.closed_folders import looked_at, usual_places
from jobs.doctor.security.exposure import Exposure, LooseSecret
from jobs.doctor.security.listening import listeners
from jobs.doctor.security.loose_secrets import in_environment_files, in_spec, on_command_lines
from reporting.results.redaction import without_credentials

# How long each call of the trial waits for a bucket.
_WAIT_S = 10.0
_ENVIRONMENT_FILES = ("/etc/longhaul",)


def security(args: argparse.Namespace) -> int:
    with waits_told("doctor"):
        seen = exposure(args.store, args.spec)
    findings = judge(seen)
    code = EXIT_UNDECIDED if any(finding.level != "ok" for finding in findings) else EXIT_OK
    print(as_json(seen, findings, code) if args.json else printable(as_text(findings)), end="")
    return code


def exposure(store_url: str | None, spec: Path | None) -> Exposure:
    """Collects all observations as data. What can't be looked at is left out."""
    described = _described(spec)
    url = store_url or described.get("store") or "results"
    store = open_store(url if isinstance(url, str) else "results", base=store_base())
    folder = store.root if isinstance(store, LocalStore) else None
    address = os.environ.get("RAY_ADDRESS")
    return Exposure(
        listeners=listeners(),
        folders=looked_at(usual_places(folder, _folders_of(described))),
        secrets=tuple(dict.fromkeys(_loose(spec))),
        trial=try_bucket(store.url, partial(open_to_read, wait_s=_WAIT_S, advice="")),
        joins=without_credentials(address) if address else None,
        has_token_mode=os.environ.get("RAY_AUTH_MODE", "").lower() == "token",
    )


def _described(spec: Path | None) -> dict[str, Any]:
    """What the spec says, unchecked: also one that can't run may hold secrets."""
    with suppress(YamlError):
        found = read_yaml(spec, "a spec") if spec else {}
        return found if isinstance(found, dict) else {}
    return {}


def _folders_of(described: dict[str, Any]) -> Iterator[Path]:
    for section in ("checkpoint", "data"):
        part = described.get(section)
        local = part.get("local") if isinstance(part, dict) else None
        if isinstance(local, dict) and isinstance(local.get("dir"), str):
            with suppress(RuntimeError):  # A user without a home.
                yield Path(local["dir"]).expanduser()


def _loose(spec: Path | None) -> Iterator[LooseSecret]:
    yield from in_environment_files([Path.cwd(), *map(Path, _ENVIRONMENT_FILES)])
    yield from in_spec(spec) if spec else ()
    yield from on_command_lines()


def as_text(findings: Sequence[Finding]) -> str:
    """One line per finding, the remedy behind it."""
    lines = [_line(finding) for finding in findings]
    num_open = sum(finding.level != "ok" for finding in findings)
    verdict = f"{num_open} finding{'' if num_open == 1 else 's'}" if num_open else "Nothing was found open"
    return "".join(f"{one_line(line)}\n" for line in lines) + f"{verdict}.\n"


def _line(finding: Finding) -> str:
    word = "ok" if finding.level == "ok" else "open"
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{word:<6}{finding.subject}: {finding.found}{remedy}"


def as_json(seen: Exposure, findings: Sequence[Finding], code: int) -> str:
    found = {"findings": [asdict(finding) for finding in findings], "exit_code": code, "seen": asdict(seen)}
    return json.dumps(found, indent=1) + "\n"
