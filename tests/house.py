"""Reads our modules' imports without importing them, and says which rule of the house each one breaks.

Every rule is a function of a module to its problems, so that it can be seen red on a module made up for it.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("cluster", "checkpointing", "reporting", "jobs")

# Who may import whom. A prefix stands for all modules below it; the longest one that fits decides.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "cluster": ("cluster",),
    "checkpointing": ("checkpointing",),
    "reporting": ("reporting", "checkpointing.store"),
    "jobs": ROOMS,
    # A worker never knows the sweep, only the words in which it tells the driver how it is getting on.
    "jobs.training": (
        "jobs.training", "jobs.sessions", "jobs.board", "cluster", "checkpointing", "reporting",
    ),
    "tests": (*ROOMS, "tests"),
    "tests.unit": (*ROOMS, "tests.unit", "tests.conftest", "tests.contract", "tests.faults"),
}  # fmt: skip

# Each dependency's front doors: nobody else imports it, not even lazily.
FRONT_DOORS: Mapping[str, tuple[str, ...]] = {
    "torch": ("jobs.training", "jobs.inline", "cluster.probe", "checkpointing.snapshot"),
    "ray": (
        "cluster.live", "cluster.local", "cluster.nodes", "checkpointing.hooks", "jobs.launch", "jobs.keeper",
        "jobs.doctor", "jobs.pack", "jobs.training.worker",
    ),
    "deepspeed": ("jobs.training.strategies.zero",),
    "pydantic": ("jobs.spec_file", "jobs.spec", "jobs.run_spec", "jobs.run_sections"),
    "yaml": ("jobs.spec_file", "cluster.config"),
    "rich": ("jobs.display",),
    "psutil": ("cluster.machine",),
    "pynvml": ("cluster.machine", "cluster.telemetry", "jobs.training.environment"),
    "amdsmi": ("cluster.telemetry",),
    "numpy": ("reporting.statistics", "reporting.charts", "jobs.training.randomness"),
    "orjson": ("reporting.results",),
    "pyarrow": ("reporting.tables", "reporting.parts", "jobs.packing.documents", "jobs.training.id_columns"),
    "tokenizers": ("jobs.packing.tokenizing",),
    "matplotlib": ("reporting.charts",),
    "openpyxl": ("reporting.importers",),
    "tensorboardX": ("reporting.importers", "reporting.live"),
    "wandb": ("reporting.live",),
    "obstore": ("checkpointing.objects", "checkpointing.buckets"),
    "boto3": ("checkpointing.buckets",),
    "botocore": ("checkpointing.buckets",),
    "xxhash": ("checkpointing.digests",),
}  # fmt: skip

# These run on a bare Python, and so does every module whose docstring calls it pure.
PURE = (
    "cluster.accelerators", "cluster.environment", "cluster.inventory", "cluster.placement",
    "reporting.formulas", "reporting.records",
    "jobs.arguments", "jobs.cli", "jobs.grid", "jobs.plan", "jobs.queues", "jobs.record", "jobs.sessions",
    "jobs.sweep", "jobs.training.job", "jobs.training.measurement", "jobs.training.models.presets",
)  # fmt: skip

# Who may ask what time it is, for moments that people read or that are stored. A duration, a deadline, a
# cadence is taken from time.monotonic: somebody may set the clock in the middle of it.
WALL_CLOCKS = (
    "checkpointing.buckets", "checkpointing.log", "checkpointing.near", "checkpointing.publisher",
    "checkpointing.repository", "jobs.bell", "jobs.bookkeeper", "jobs.checkpoints.commands",
    "jobs.doctor.asking", "jobs.doctor.envoy", "jobs.doctor.story", "jobs.restarts",
    "jobs.run_display", "jobs.status", "jobs.training.recording", "jobs.training.saving",
    "jobs.training.task", "reporting.recorder", "reporting.steady",
)  # fmt: skip

TAKEN_NAMES = frozenset(
    {*sys.stdlib_module_names, *FRONT_DOORS, *ROOMS, "pytest", "hypothesis", "transformers"}
)
_IGNORE_WITHOUT_REASON = re.compile(r"#\s*(type:\s*ignore|noqa)\b(\[[^]]*\]|:\s*[A-Z0-9, ]+)?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """``is_eager`` imports happen when the module itself is imported."""

    target: str
    line: int
    is_eager: bool
    is_relative: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    source: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.source)

    @property
    def imports(self) -> list[Import]:
        return list(_imports(self.tree.body, is_eager=True))


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def our_modules(*folders: str) -> dict[str, Module]:
    """By dotted name; a package's is that of its ``__init__``."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    modules = (Module(_name_of(path), path.read_text()) for path in paths)
    return {module.name: module for module in modules}


def wrong_rooms(module: Module) -> list[str]:
    allowed = MAY_IMPORT[_longest_prefix(module.name, MAY_IMPORT)]
    return [
        _problem(module, found, "is out of bounds here")
        for found in module.imports
        if _is_ours(found.target) and not _is_below(found.target, allowed)
    ]


def wrong_front_doors(module: Module) -> list[str]:
    problems = []
    for found in module.imports:
        package = found.target.partition(".")[0]
        if package in sys.stdlib_module_names or _is_ours(found.target) or found.is_relative:
            continue
        if not _is_below(module.name, FRONT_DOORS.get(package, ())):
            doors = ", ".join(FRONT_DOORS.get(package, ())) or "none yet: give it one in tests/house.py"
            problems.append(_problem(module, found, f"has its front doors elsewhere ({doors})"))
    return problems


def relative_imports(module: Module) -> list[str]:
    return [_problem(module, found, "is relative") for found in module.imports if found.is_relative]


def missing_docstring(module: Module) -> list[str]:
    return [] if ast.get_docstring(module.tree) else [f"{module.name}: does not begin with a docstring"]


def classes(module: Module) -> list[str]:
    found = (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    return [f"{module.name}:{node.lineno}: an entry file defines {node.name}" for node in found]


def taken_name(path: Path) -> list[str]:
    return [f"{path}: hides the module {path.stem!r}"] if path.stem in TAKEN_NAMES else []


def unexplained_ignores(module: Module) -> list[str]:
    lines = enumerate(module.source.splitlines(), start=1)
    wrong = (number for number, line in lines if _IGNORE_WITHOUT_REASON.search(line))
    return [f"{module.name}:{number}: ignores a check without a reason beside it" for number in wrong]


def wall_clocks(module: Module) -> list[str]:
    if module.name in WALL_CLOCKS:
        return []
    asked = {"time.time", "datetime.now", "datetime.datetime.now"}
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    lines = [node.lineno for node in found if ast.unparse(node) in asked]
    imported = [one.line for one in module.imports if one.target == "time.time"]
    return [
        f"{module.name}:{line}: asks the wall clock: time.monotonic() for what lasts, else see WALL_CLOCKS"
        for line in sorted([*lines, *imported])
    ]


def files_not_listed(package: Module, modules: Iterable[str]) -> list[str]:
    """A room's docstring names its files, in the order in which a newcomer should read them."""
    text = ast.get_docstring(package.tree) or ""
    below = f"{package.name}."
    files = {name.removeprefix(below).partition(".")[0] for name in modules if name.startswith(below)}
    unnamed = sorted(file for file in files if not _has_word(text, file))
    return [f"{package.name}: its docstring does not name {file}" for file in unnamed]


def is_called_pure(module: Module) -> bool:
    return _has_word(ast.get_docstring(module.tree) or "", "Pure")


def loaded_with(name: str, modules: Mapping[str, Module]) -> dict[str, str]:
    """What importing ``name`` imports that is neither ours nor Python's: package -> who asks for it."""
    seen: set[str] = set()
    waiting = [name]
    outside: dict[str, str] = {}
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if current not in modules:
            continue
        for found in (found for found in modules[current].imports if found.is_eager):
            if _is_ours(found.target):
                waiting += [parent for parent in _with_parents(found.target) if parent in modules]
            elif (package := found.target.partition(".")[0]) not in sys.stdlib_module_names:
                outside.setdefault(package, current)
    return outside


def _imports(body: Iterable[ast.stmt], *, is_eager: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(target=alias.name, line=node.lineno, is_eager=is_eager)
        elif isinstance(node, ast.ImportFrom):
            yield from _imports_from(node, is_eager=is_eager)
        else:
            inner = is_eager and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from _imports(_statements_in(node), is_eager=inner and not is_for_types)


def _imports_from(node: ast.ImportFrom, *, is_eager: bool) -> Iterator[Import]:
    """``from a import b`` may mean the module ``a.b``; where it doesn't, the name is merely more precise."""
    if node.level:
        yield Import(target=node.module or "", line=node.lineno, is_eager=is_eager, is_relative=True)
        return
    for alias in node.names:
        yield Import(target=f"{node.module}.{alias.name}", line=node.lineno, is_eager=is_eager)


def _statements_in(node: ast.stmt) -> list[ast.stmt]:
    """Those one level down, also in the branches of ``try`` and ``match``."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found += child.body
    return found


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _with_parents(target: str) -> list[str]:
    """Importing ``a.b.c`` imports ``a`` and ``a.b`` first."""
    parts = target.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _is_ours(target: str) -> bool:
    return target.partition(".")[0] in (*ROOMS, "tests")


def _is_below(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _longest_prefix(name: str, prefixes: Iterable[str]) -> str:
    return max((prefix for prefix in prefixes if _is_below(name, (prefix,))), key=len)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def _problem(module: Module, found: Import, what: str) -> str:
    return f"{module.name}:{found.line}: {found.target} {what}"
