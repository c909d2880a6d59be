"""Looks up known holes of the versions in ``constraints.txt``, by pip-audit: ``make audit``.

Its database is on the network. Where it can't be asked, one line says so, and the exit code is neither that
of an answer without holes nor that of one with some. With ``--if-at-hand``, as `make check` asks, that is no
failure.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXIT_WELL, EXIT_HOLES, EXIT_UNKNOWN = 0, 1, 3
IF_AT_HAND = "--if-at-hand"
_TIMEOUT_S, _TIMEOUT_IN_A_CHECK_S = 300, 60
_MOST_REASON = 200
_NOT_ASKED = "audit: nothing was looked up:"


def main(words: Sequence[str] = ()) -> int:
    is_check = IF_AT_HAND in words
    if find_spec("pip_audit") is None:
        lines, code = (
            [f"{_NOT_ASKED} pip-audit is not installed (.venv/bin/pip install pip-audit)"],
            EXIT_UNKNOWN,
        )
    else:
        timeout_s = _TIMEOUT_IN_A_CHECK_S if is_check else _TIMEOUT_S
        lines, code = verdict(*_ask(ROOT / "constraints.txt", timeout_s))
    print("\n".join(lines))
    return EXIT_WELL if is_check and code == EXIT_UNKNOWN else code


def verdict(printed: str, complaints: str) -> tuple[list[str], int]:
    """What pip-audit's JSON says, and the exit code. Without JSON it has not come to an end: its own exit
    code is the same as for holes. Where each look-up fails, it skips the package and says that all is well.
    """
    try:
        found = json.loads(printed)["dependencies"]
        holes = [_line(one, hole) for one in found for hole in one.get("vulns", [])]
        skipped = [
            f"audit: {one['name']} was skipped: {one['skip_reason']}" for one in found if "skip_reason" in one
        ]
    except (ValueError, KeyError, TypeError):
        reason = _last_line(complaints) or "pip-audit has printed no answer"
        return [f"{_NOT_ASKED} the database can't be reached or gave no answer ({reason})"], EXIT_UNKNOWN
    if len(skipped) == len(found):
        return [
            f"{_NOT_ASKED} the database can't be reached, or knows none of {len(found)} packages"
        ], EXIT_UNKNOWN
    if holes:
        return [*skipped, *holes], EXIT_HOLES
    if skipped:
        return [*skipped, "audit: no known hole in the others"], EXIT_UNKNOWN
    return [f"audit: no known hole in {len(found)} packages"], EXIT_WELL


def _ask(constraints: Path, timeout_s: float) -> tuple[str, str]:
    words = [
        "--requirement",
        str(constraints),
        "--no-deps",
        "--disable-pip",
        "--format=json",
        "--progress-spinner=off",
    ]
    command: Sequence[str] = [sys.executable, "-m", "pip_audit", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {timeout_s} s"
    return done.stdout, done.stderr


def _line(package: dict[str, Any], hole: dict[str, Any]) -> str:
    mended = ", ".join(hole.get("fix_versions") or []) or "no version"
    return f"audit: {package['name']} {package['version']}: {hole['id']}, mended in {mended}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST_REASON] if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
