"""Makes Longhaul's environment: `python3 cluster/set_up.py .venv --extras test,check`.

What this promises:

- The versions are those of ``constraints.txt``. uv installs them where it is there or can be had, else pip;
  both obey pip's configuration. What uv does not know of that configuration is a reason for pip.
- A torch that the environment already has (a vendor's build in an image) stays as it is. One outside of the
  range in ``pyproject.toml`` ends the set-up with one line, before anything is installed.
- With ``--locked`` each file has a digest that stands in ``locked/``, but torch and what its build brings.
- A sign of life comes every 10 s. If the installation fails, what it printed last is shown, without
  credentials.

This file runs before anything is installed: it needs Python's own library alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent

# pip's settings, and the variables by which uv obeys the same. Lists are separated as uv wants them.
_UV_SAYS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
# They change how pip looks or talks, and nothing that is installed.
_MATTERS_NOT = frozenset(
    {
        "break-system-packages", "cache-dir", "config-file", "disable-pip-version-check", "no-cache-dir",
        "no-color", "no-input", "progress-bar", "quiet", "retries", "root-user-action", "verbose",
    }
)  # fmt: skip
_NO_INDEX = "no-index"
# pip does it while it installs, uv does not: then each process would compile what it loads, for as long as
# nobody may write there or PYTHONDONTWRITEBYTECODE is set. The rest is large, and loaded by few.
_COMPILE = """
import compileall, os, re, sysconfig
packages = sysconfig.get_path("purelib")
os.chdir(packages)
rest = re.compile("/(tests?|testing|rllib|models|_inductor|sympy|moto|plotting)/")
compileall.compile_dir(".", ddir=packages, quiet=2, workers=0, rx=rest)
"""
_SIGN_OF_LIFE_S = 10
_LAST_LINES = 20


class SetUpError(Exception):
    """Why there is no environment, as one line for whoever asked for it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the environment in FOLDER.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="", help="extras of the project, separated by commas")
    parser.add_argument(
        "--system-site-packages", action="store_true", help="use what the image has, its torch above all"
    )
    parser.add_argument(
        "--locked", action="store_true", help="install only files whose digests are known, but for torch's"
    )
    parser.add_argument(
        "--with", dest="installer", choices=("uv", "pip"), help="the installer (default: uv, else pip)"
    )
    parser.add_argument("--project", type=Path, default=ROOT, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        set_up(
            asked.folder, asked.project, asked.extras, asked.system_site_packages, asked.installer,
            is_locked=asked.locked,
        )  # fmt: skip
    except SetUpError as failure:
        print(f"set-up: {failure}", file=sys.stderr)
        return 1
    return 0


def set_up(
    folder: Path,
    project: Path,
    extras: str,
    system: bool,
    installer: str | None,
    *,
    is_locked: bool = False,
) -> None:
    """Makes the environment ``folder`` and installs the project with its extras into it."""
    begun = time.monotonic()
    if is_locked and not (path := locked_file(project, extras)).is_file():
        raise SetUpError(f"{path} is not there; take a whole checkout, or leave out --locked")
    python = _environment(folder, system)
    constraints = project / "constraints.txt"
    kept = _torch_that_stays(python, project)
    settings = settings_of_pip(python)
    uv = None if installer == "pip" else _uv(python, constraints, settings, asked_for=installer == "uv")
    target = str(project.resolve()) + (f"[{extras}]" if extras else "")
    said = f"with {'uv' if uv else 'pip'}" + (_beside(kept, constraints) if kept else "")
    print(f"installing into {folder} {said}", flush=True)
    if is_locked:
        _locked(uv, python, project, extras, settings, kept)
    elif uv:
        _with_uv(uv, python, constraints, target, settings, kept)
    else:
        _with_pip(python, constraints, target, kept)
    if uv:
        _run([str(python), "-c", _COMPILE], "bytecode")
    print(f"{folder} is ready after {time.monotonic() - begun:.0f} s", flush=True)


def _environment(folder: Path, system: bool) -> Path:
    flags = ["--system-site-packages"] if system else []
    _run([sys.executable, "-m", "venv", *flags, str(folder)], "making the environment")
    return folder.absolute() / "bin" / "python"


def _torch_that_stays(python: Path, project: Path) -> str | None:
    """The version of torch in the environment, its local build too; None if there is none."""
    ask = (
        "import importlib.metadata as m\ntry: print(m.version('torch'))\nexcept m.PackageNotFoundError: pass"
    )
    there = _output([str(python), "-c", ask]).strip()
    asked = requirement(project, "torch")
    if there and not is_within(there, asked):
        tested = pinned((project / "constraints.txt").read_text(encoding="utf-8"), "torch")
        raise SetUpError(
            f"torch {there} is there, and stays; Longhaul works with torch {asked}, and was tested with "
            f"{tested}. Take an image that has one of these, or an environment without torch"
        )
    return there or None


def _beside(kept: str, constraints: Path) -> str:
    tested = pinned(constraints.read_text(encoding="utf-8"), "torch")
    is_tested = not tested or kept.partition("+")[0] == tested
    return f", beside torch {kept}, which stays" + ("" if is_tested else f" ({tested} was tested)")


def requirement(project: Path, package: str) -> str:
    """The range that ``pyproject.toml`` asks for, such as ``>=2.13,<2.14``; empty if any version will do."""
    asked = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    found = (re.fullmatch(rf"{re.escape(package)}(?:\[[^]]*\])?\s*([<>=!~].*)?", one) for one in asked)
    return next((one[1] or "" for one in found if one), "")


def is_within(version: str, asked: str) -> bool:
    """Whether a version lies in ``>=A,<B``; as for pip, what is before a release B is no release below it."""
    parts = [re.fullmatch(r"(>=|<|==)\s*(\S+)", part.strip()) for part in asked.split(",") if part.strip()]
    if None in parts:
        raise SetUpError(f"pyproject.toml asks for {asked!r}, expected a range such as '>=2.13,<2.14'")
    return all(_obeys(version, part[1], part[2]) for part in parts if part)


def _obeys(version: str, sign: str, bound: str) -> bool:
    match sign:
        case ">=":
            return not is_before(version, bound)
        case "<":
            return release(version) < release(bound)
        case _:
            return release(version) == release(bound)


def is_before(version: str, bound: str) -> bool:
    """Whether ``version`` comes before the release ``bound``; 2.13.0a0 comes before 2.13."""
    public = version.partition("+")[0]
    is_early = re.search(r"(a|b|rc|\.?dev)\d*", public) is not None
    return (release(version), not is_early) < (release(bound), True)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at their end: those of 2.13.0+cpu and of 2.13 are the same."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def pinned(constraints: str, package: str) -> str | None:
    """The version that the lines ``name==version`` say of a package."""
    pin = re.search(rf"^{re.escape(package)}==([^\s;]+)", constraints, re.MULTILINE)
    return pin[1] if pin else None


def settings_of_pip(python: Path) -> dict[str, list[str]]:
    return settings(_output([str(python), "-m", "pip", "config", "list"]))


def settings(listed: str) -> dict[str, list[str]]:
    """What `pip config list` says, as values by setting. A variable wins over a file, as with pip; a section
    for another command than ``install`` says nothing here."""
    values: dict[str, tuple[int, list[str]]] = {}
    for line in listed.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.partition(".")
        rank = {"global": 0, "install": 1, ":env:": 2}.get(section)
        if rank is None or rank < values.get(key, (0, []))[0]:
            continue
        values[key.replace("_", "-")] = (rank, _unquoted(quoted).split())
    return {key: value for key, (_, value) in values.items()}


def _unquoted(text: str) -> str:
    return text.strip().removeprefix("'").removesuffix("'").replace("\\n", " ")


def as_uv_obeys(settings: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """Variables by which uv does what pip would; None if it can't.

    Like pip, uv then takes the best version of all indexes.
    """
    if _unknown_to_uv(settings):
        return None
    told = {
        _UV_SAYS[key][0]: _UV_SAYS[key][1].join(value) for key, value in settings.items() if key in _UV_SAYS
    }
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **told}


def _unknown_to_uv(settings: Mapping[str, Sequence[str]]) -> set[str]:
    return set(settings) - set(_UV_SAYS) - {_NO_INDEX} - _MATTERS_NOT


def _uv(
    python: Path, constraints: Path, settings: Mapping[str, Sequence[str]], *, asked_for: bool
) -> str | None:
    """The command uv: from PATH, else pip puts it into the environment. None if pip is to install."""
    if as_uv_obeys(settings) is None:
        unknown = ", ".join(sorted(_unknown_to_uv(settings)))
        if asked_for:
            raise SetUpError(
                f"uv does not know what pip's configuration says of {unknown}; leave out --with uv"
            )
        print(f"pip's configuration has {unknown}, which uv does not know: pip installs", flush=True)
        return None
    if there := shutil.which("uv"):
        return there
    wanted = f"uv=={pinned(constraints.read_text(encoding='utf-8'), 'uv')}"
    got = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wanted],
        capture_output=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if got.returncode == 0:
        return str(python.parent / "uv")
    if asked_for:
        raise SetUpError(f"{wanted} can't be had; leave out --with uv")
    return None


def _with_uv(
    uv: str,
    python: Path,
    constraints: Path,
    target: str,
    settings: Mapping[str, Sequence[str]],
    kept: str | None,
) -> None:
    with tempfile.TemporaryDirectory() as own:
        overrides = Path(own) / "overrides.txt"
        # uv does not see what an environment has from its image: torch is taken out of all requirements.
        overrides.write_text('torch ; python_version < "0"\n' if kept else "", encoding="utf-8")
        _run(
            [uv, "pip", "install", *_flags(settings), "--python", str(python), "--overrides", str(overrides),
             "-c", str(constraints), "-e", target],
            "uv", **(as_uv_obeys(settings) or {}),
        )  # fmt: skip


def locked_file(project: Path, extras: str) -> Path:
    """The file with the digests of what these extras need, and perhaps of more."""
    for_users = set(filter(None, extras.split(","))) <= {"fp8"}
    return project / "locked" / ("product.txt" if for_users else "development.txt")


def _locked(
    uv: str | None,
    python: Path,
    project: Path,
    extras: str,
    settings: Mapping[str, Sequence[str]],
    kept: str | None,
) -> None:
    """Installs torch, then exactly the listed files, then the project, which resolves nothing any more."""
    pip = [str(python), "-m", "pip", "install"]
    install = [uv, "pip", "install", *_flags(settings), "--python", str(python)] if uv else pip
    variables = (as_uv_obeys(settings) or {}) if uv else {}
    if not kept:
        _run([*install, "-c", str(project / "constraints.txt"), "torch"], "torch (1 of 3)", **variables)
    exactly = ["--no-deps", "--require-hashes", "-r", str(locked_file(project, extras))]
    # uv wants a digest of whatever else is said of versions, and nothing else needs to be.
    free = {name: value for name, value in variables.items() if name != _UV_SAYS["constraint"][0]}
    _run([*install, *exactly], "what is locked (2 of 3)", **free)
    own = ["--no-deps", "--no-build-isolation", "-e", str(project.resolve())]
    _run([*install, *own], "longhaul (3 of 3)", **variables)


def _flags(settings: Mapping[str, Sequence[str]]) -> list[str]:
    """uv has no variable for this one."""
    return ["--no-index"] if settings.get(_NO_INDEX, ["no"])[0].lower() in ("1", "true", "yes", "on") else []


def _with_pip(python: Path, constraints: Path, target: str, kept: str | None) -> None:
    """torch alone and first: what comes after it must find it and not bring another build."""
    with tempfile.TemporaryDirectory() as own:
        file = Path(own) / "constraints.txt"
        file.write_text(_keeping(constraints.read_text(encoding="utf-8"), kept), encoding="utf-8")
        install = [str(python), "-m", "pip", "install", "-c", str(file)]
        if not kept:
            _run([*install, "torch"], "pip, torch (1 of 2)")
        _run([*install, "-e", target], "pip, the rest (2 of 2; some minutes)")


def _keeping(constraints: str, torch: str | None) -> str:
    """The constraints, with the torch that stays in the place of the tested one."""
    return (
        re.sub(r"^torch==.*$", f"torch=={torch}", constraints, flags=re.MULTILINE) if torch else constraints
    )


def _run(command: Sequence[str], what: str, **variables: str) -> None:
    """Runs a command to its end. What it prints is shown only if it fails."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            # What somebody set for uv wins over what pip's configuration says.
            env={**variables, **os.environ, "DS_BUILD_OPS": "0"},
        )  # fmt: skip
        begun = time.monotonic()
        while True:
            try:
                code = process.wait(_SIGN_OF_LIFE_S)
                break
            except subprocess.TimeoutExpired:
                print(f"  {what}: {time.monotonic() - begun:.0f} s", flush=True)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if code:
            raise SetUpError(f"{what} failed (exit code {code}):\n{_last_lines(printed)}")


def _last_lines(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - 20_000))
    lines = printed.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    return without_credentials("\n".join(lines))


def without_credentials(text: str) -> str:
    return re.sub(r"(://)[^/@\s]+@", r"\1", text)


def _output(command: Sequence[str]) -> str:
    return subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, text=True, encoding="utf-8", check=False
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
