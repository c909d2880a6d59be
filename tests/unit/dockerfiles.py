"""Reads a Dockerfile and says which of our rules it breaks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SECRET = re.compile(r"token|passw|secret|credential|api_?key", re.IGNORECASE)
_VERSIONS = ("TORCH_VERSION", "RAY_VERSION")


@dataclass(frozen=True, slots=True)
class Dockerfile:
    text: str

    @property
    def instructions(self) -> list[tuple[str, str]]:
        """Each as its word and all the rest in one line, comments left out."""
        lines = "\n".join(line for line in self.text.splitlines() if not line.startswith("#"))
        joined = re.sub(r"\\\n\s*", " ", lines)
        return [
            (word.upper(), rest)
            for word, _, rest in (line.partition(" ") for line in joined.splitlines())
            if word
        ]

    def all(self, word: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == word]

    @property
    def arguments(self) -> dict[str, str]:
        return {name: value for name, _, value in (rest.partition("=") for rest in self.all("ARG"))}

    @property
    def is_of_a_vendor(self) -> bool:
        """Then torch came with the base."""
        return self.arguments.get("TORCH_BUILD") in ("cuda", "rocm")


def problems(file: Dockerfile, constraints: str) -> list[str]:
    return [
        *_base(file),
        *_sources(file),
        *_secrets(file),
        *_user(file),
        *_torch(file),
        *_versions(file, constraints),
    ]


def pins(constraints: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_-]+)==(\S+)", constraints, flags=re.MULTILINE))


def _base(file: Dockerfile) -> Iterator[str]:
    bases = file.all("FROM")
    if len(bases) != 1:
        yield f"has {len(bases)} bases, expected one"
    for base in bases:
        name, _, tag = base.partition(":")
        if "$" in base or ("@sha256" not in name and tag in ("", "latest")):
            yield f"FROM {base} is not pinned"
    if "Not built here" not in file.text:
        yield "does not say that it was not built here"


def _sources(file: Dockerfile) -> Iterator[str]:
    if file.all("ADD"):
        yield "uses ADD, which may fetch; use COPY"
    if "COPY . " in file.text:
        yield "copies the whole folder, with whatever lies in it"
    for command in file.all("RUN"):
        if re.search(r"https?://|\bcurl\b|\bwget\s+-|--(extra-)?index-url", command):
            yield f"fetches by address: {command[:40]}"
        if "apt-get install" in command and "rm -rf /var/lib/apt/lists" not in command:
            yield "keeps apt's lists"


def _secrets(file: Dockerfile) -> Iterator[str]:
    for word in ("ENV", "ARG"):
        yield from (f"{word} {rest} looks like a secret" for rest in file.all(word) if _SECRET.search(rest))


def _user(file: Dockerfile) -> Iterator[str]:
    users = file.all("USER")
    if not users or users[-1] in ("root", "0"):
        yield "ends as root"
    if not any(rest.startswith("HOME=/home/") for rest in file.all("ENV")):
        yield "has no ENV HOME, which Ray's launcher reads"
    if not any("PATH='$PATH'" in command and "/etc/profile.d/" in command for command in file.all("RUN")):
        yield "loses its PATH in login shells"


def _torch(file: Dockerfile) -> Iterator[str]:
    for command in file.all("RUN"):
        if file.is_of_a_vendor and re.search(r"install\b.*\s(--upgrade|-U|torch)(\s|=|$)", command):
            yield f"may replace the base's torch: {command[:60]}"
        if "pip install" in command and "constraints.txt" not in command and "/opt/rocm" not in command:
            yield f"installs what constraints.txt does not pin: {command[:60]}"


def _versions(file: Dockerfile, constraints: str) -> Iterator[str]:
    pinned = pins(constraints)
    for name in _VERSIONS:
        expected = pinned[name.partition("_")[0].lower()]
        if file.arguments.get(name) != expected:
            yield f"{name} is {file.arguments.get(name)}, constraints.txt has {expected}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", file.arguments.get("PYTHON_VERSION", "")):
        yield "PYTHON_VERSION is not exact"
