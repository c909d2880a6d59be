"""Reads our modules' imports without importing them, and says which rule of the house each one breaks.

Every rule is a function of a module to its problems, so that it can be seen red on a module made up for it.
``rays_names`` has one more, of Ray's private names.
"""

import ast
import re
import sys
from collections import Counter
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
    "reporting": ("reporting", "checkpointing.stores"),
    "jobs": ROOMS,
    # A worker never knows the sweep, the driver or Ray: it takes a small context.
    "jobs.training": ("jobs.training", "cluster", "checkpointing", "reporting"),
    "tests": (*ROOMS, "tests"),
    # Attacks are run on other versions too, so they know the product by its command line alone.
    "tests.security": ("tests.security",),
    "tests.unit": (*ROOMS, "tests.unit", "tests.conftest", "tests.contract", "tests.faults", "tests.house"),
}  # fmt: skip

# The floors of each room, from the top. A folder imports only from floors below its own, and from itself and
# what lies in it. Files that lie in a room itself stand under the room's name.
FLOORS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cluster": (
        ("cluster.probe", "cluster.slurm"),
        ("cluster.telemetry", "cluster.fingerprint", "cluster.local_ray", "cluster.gate"), ("cluster",),
    ),
    "checkpointing": (
        ("checkpointing.ray_hooks",), ("checkpointing.saving",), ("checkpointing.generations",),
        ("checkpointing.format",), ("checkpointing.log",), ("checkpointing.stores",),
        ("checkpointing.errors",),
    ),
    "reporting": (
        ("reporting.page",), ("reporting.charts", "reporting.markdown"), ("reporting.analysis",),
        ("reporting.long_runs",), ("reporting.recording", "reporting.importers"), ("reporting.results",),
    ),
    "jobs": (
        ("jobs",), ("jobs.cli",), (
            "jobs.listing", "jobs.explaining", "jobs.first_spec", "jobs.watching", "jobs.dataset",
        ),
        ("jobs.durable", "jobs.spares"), ("jobs.runs", "jobs.slurm"),
        ("jobs.sweeps", "jobs.doctor", "jobs.checkpoints", "jobs.packing", "jobs.reports", "jobs.clusters"),
        ("jobs.spec_schema",), ("jobs.recovery", "jobs.alerts", "jobs.gauges", "jobs.launch"),
        ("jobs.execution", "jobs.run_progress"), ("jobs.training",), ("jobs.commandline",),
    ),
    "jobs.launch": (("jobs.launch",), ("jobs.launch.ray_train",), ("jobs.launch.forkserver",)),
    "jobs.training": (
        ("jobs.training.loop", "jobs.training.benchmark", "jobs.training.preload"),
        ("jobs.training.step",), ("jobs.training.state",), ("jobs.training.strategies",),
        ("jobs.training.precision", "jobs.training.models", "jobs.training.data", "jobs.training.device"),
        ("jobs.training.health",), ("jobs.training.ranks",), ("jobs.training.task",),
    ),
}  # fmt: skip

# A newcomer reads a folder in one go.
MOST_MODULES = 15

# Each dependency's front doors: nobody else imports it, not even lazily.
FRONT_DOORS: Mapping[str, tuple[str, ...]] = {
    "torch": (
        "jobs.training", "jobs.launch.inline", "jobs.launch.ray_train.worker", "cluster.probe",
        "checkpointing.saving.snapshot", "jobs.durable",
    ),
    "ray": (
        "cluster.live", "cluster.local_ray", "cluster.ray_internals", "checkpointing.ray_hooks",
        "jobs.launch.ray_train", "jobs.gauges.ray_gauges",
        "jobs.launch.forkserver", "jobs.runs.supervisor", "jobs.runs.driver_job", "jobs.doctor",
        "jobs.packing.ray_pack",
    ),
    "grpc": ("cluster.ray_internals",),
    "deepspeed": ("jobs.training.strategies.zero",),
    "torchao": ("jobs.training.models.fp8",),
    "pydantic": ("jobs.spec_schema",),
    "yaml": ("cluster.yaml_file",),
    "rich": ("jobs.sweeps.live_view", "jobs.watching.terminal"),
    "psutil": ("cluster.this_machine",),
    "pynvml": ("cluster.this_machine", "cluster.telemetry", "jobs.training.device.environment"),
    "amdsmi": ("cluster.telemetry",),
    "numpy": (
        "reporting.analysis.statistics", "reporting.charts", "jobs.training.state.random_state",
        "jobs.training.data.samples",
    ),
    "orjson": ("reporting.results.result_rows",),
    "pyarrow": (
        "reporting.results.tables", "reporting.recording.parts", "jobs.packing.formats",
        "jobs.training.data.formats.parquet_tokens", "jobs.training.data.formats.mds",
    ),
    "tokenizers": ("jobs.packing.tokenizing",),
    "sentencepiece": ("jobs.packing.models.sentencepiece_model",),
    "tiktoken": ("jobs.packing.models.tiktoken_file",),
    "tiktoken_ext": ("jobs.packing.models.tiktoken_file",),
    "jinja2": ("jobs.packing.chat.sandbox",),
    "transformers": ("jobs.durable.hugging_face",),
    "matplotlib": ("reporting.charts",),
    "openpyxl": ("reporting.importers",),
    "tensorboardX": ("reporting.importers", "reporting.recording.sinks"),
    "wandb": ("reporting.recording.sinks",),
    "obstore": ("checkpointing.stores.objects", "checkpointing.stores.buckets"),
    "boto3": ("checkpointing.stores.buckets",),
    "botocore": ("checkpointing.stores.buckets", "checkpointing.stores.settings"),
    "xxhash": ("checkpointing.format.digests",),
}  # fmt: skip

# These run on a bare Python, and so does every module whose docstring calls it pure.
PURE = (
    "cluster.accelerators", "cluster.environment", "cluster.inventory", "cluster.placement",
    "reporting.results.formulas", "reporting.results.records",
    "jobs.cli.arguments", "jobs.cli.__main__", "jobs.sweeps.grid", "jobs.sweeps.plan",
    "jobs.sweeps.work_queues", "jobs.sweeps.rows.result_record", "jobs.execution.messages", "jobs.sweep",
    "jobs.training.task.job", "jobs.training.task.measurement", "jobs.training.task.presets",
)  # fmt: skip

# Who may ask what time it is, for moments that people read or that are stored. A duration, a deadline, a
# cadence is taken from time.monotonic: somebody may set the clock in the middle of it.
WALL_CLOCKS = (
    "checkpointing.stores.buckets", "checkpointing.log.log", "checkpointing.saving.local_tier",
    "checkpointing.saving.publishing.publisher", "checkpointing.generations.repository",
    "jobs.alerts.notifier", "jobs.gauges.emitter",
    "jobs.sweeps.bookkeeper", "jobs.checkpoints.command", "jobs.doctor.survey", "jobs.doctor.node_actor",
    "jobs.doctor.command", "jobs.listing.command", "jobs.run_progress.run_view", "jobs.runs.status",
    "jobs.watching.runs", "jobs.watching.sweeps", "jobs.run_progress.sweep_progress",
    "jobs.durable.records", "jobs.training.state.saved_run",
    "jobs.training.loop.recording", "jobs.training.state.saving", "jobs.training.data.shard_check",
    "jobs.training.task.task", "reporting.recording.recorder", "reporting.recording.steady_clock",
)  # fmt: skip

# Who may name ``torch.cuda``. All others ask the first of them, where a test can put another kind of device.
DEVICE_DOORS = (
    "cluster.probe.door", "checkpointing.saving.snapshot", "jobs.training.preload",
    "jobs.training.device.torch_settings",
)  # fmt: skip

TAKEN_NAMES = frozenset({*sys.stdlib_module_names, *FRONT_DOORS, *ROOMS, "pytest", "hypothesis"})
# As they are imported or used: modules, torch's collectives of objects, its reader of files.
_UNPICKLES = re.compile(
    r"^(c?[pP]ickle|_pickle|cloudpickle|ray\.cloudpickle|dill|shelve|joblib)\b|"
    r"\b(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?$|^torch\.(load|serialization\b.*)$"
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


def wrong_floors(module: Module) -> list[str]:
    """Imports that go up, or to a neighbour on the same floor, within one room or folder."""
    return [
        _problem(module, found, "is on no lower floor (see FLOORS)")
        for found in module.imports
        for floors in FLOORS.values()
        if _goes_up(floors, module.name, found.target)
    ]


def circles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Files that import each other, directly or through others, also where an import is lazy."""
    imported = {name: _modules_imported_by(module, modules) for name, module in modules.items()}
    reached = {name: _reached_from(name, imported) for name in modules}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in modules
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(found)]


def crowded_folders(modules: Iterable[str]) -> list[str]:
    folders = Counter(name.rpartition(".")[0] for name in _files(modules))
    return [
        f"{folder}: {count} modules; at most {MOST_MODULES}: give some of them a folder"
        for folder, count in sorted(folders.items())
        if count > MOST_MODULES
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


def unnamed_encodings(module: Module) -> list[str]:
    """Without a name the locale decides, and a file of ours can't be read on somebody's machine."""
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [
        f"{module.name}:{call.lineno}: {call.func.attr} without encoding="
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "write_text")
        if not any(keyword.arg == "encoding" for keyword in call.keywords)
    ]


def unpickling(module: Module) -> list[str]:
    """To unpickle what others sent or wrote is to run it. See ``jobs.training.ranks.gathering`` instead."""
    used = [(one.line, one.target) for one in module.imports]
    attributes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    used += [(node.lineno, ast.unparse(node)) for node in attributes]
    return [
        f"{module.name}:{line}: {name} runs what others have sent or written: let them tell JSON"
        for line, name in sorted(set(used))
        if _UNPICKLES.search(name)
    ]


def devices_named(module: Module) -> list[str]:
    """A wait or a name that only one vendor's devices know is found nowhere but in the doors to devices."""
    if module.name in DEVICE_DOORS:
        return []
    used = [(one.line, one.target) for one in module.imports]
    attributes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    used += [(node.lineno, ast.unparse(node)) for node in attributes]
    return [
        f"{module.name}:{line}: torch.cuda: ask cluster.probe.door instead (see DEVICE_DOORS)"
        for line in sorted({line for line, name in used if f"{name}.".startswith("torch.cuda.")})
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


def _goes_up(floors: tuple[tuple[str, ...], ...], name: str, target: str) -> bool:
    """False where one of the two is not in this house, or both are in one folder of it."""
    folders = [folder for floor in floors for folder in floor]
    if not (_is_below(name, folders) and _is_below(target, folders)):
        return False
    own, other = _longest_prefix(name, folders), _longest_prefix(target, folders)
    if own == other:
        return False
    level = {folder: number for number, floor in enumerate(floors) for folder in floor}
    return level[other] <= level[own]


def _modules_imported_by(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """``from a import b`` is the module ``a.b`` where there is one, else ``a``."""
    targets = (_with_parents(found.target) for found in module.imports if _is_ours(found.target))
    nearest = ([name for name in names if name in modules] for names in targets)
    return {names[-1] for names in nearest if names} - {module.name}


def _reached_from(name: str, imported: Mapping[str, set[str]]) -> set[str]:
    waiting, reached = set(imported[name]), set[str]()
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting |= imported.get(current, set())
    return reached


def _files(modules: Iterable[str]) -> list[str]:
    """Without the packages, which are folders."""
    names = set(modules)
    packages = {name.rpartition(".")[0] for name in names}
    return [name for name in names if name not in packages and "." in name]


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
