"""The private names of Ray that a module uses. They may change in any version, so two doors alone have them.

Private is what has an underscore in front, and what Ray's reference does not list: ``ray.train.v2``, to which
``ray.train`` leads, a name of Ray's that is replaced, and a variable that is not in ``DOCUMENTED_VARIABLES``.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from tests.house import Module

DOORS = ("cluster.ray_internals", "jobs.launch.ray_train.train_internals")
# Variables alone, which stand again in files that are no Python.
DOORS_OF_VARIABLES = ("cluster.local_ray.timeouts",)
DOCUMENTED_VARIABLES = frozenset(
    {
        "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED",
        "RAY_JOB_STOP_SIGNAL", "RAY_JOB_STOP_WAIT_TIME_S",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_EXPERIMENTAL_NOSET_",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
    }
)  # fmt: skip
_VARIABLE = re.compile(r"RAY_\w+")

# Where it stands, and its whole name in Ray.
Use = tuple[int, str]


def outside_the_doors(module: Module) -> list[str]:
    used = [] if module.name in DOORS else names_in(module)
    if module.name not in (*DOORS, *DOORS_OF_VARIABLES):
        used += variables_in(module)
    return [
        f"{module.name}:{line}: {name} is private to Ray: ask {' or '.join(DOORS)} for it"
        for line, name in sorted(set(used))
    ]


def names_in(module: Module) -> list[Use]:
    """The longest that each use has: of ``ray._private.state.nodes()`` that, and no prefix of it."""
    bound = _bound_to_ray(module)
    used = [(found.line, found.target) for found in module.imports if _is_private(found.target)]
    used += _replaced(module.tree, bound)
    chains = {id(node): (node.lineno, name) for node, name in _chains(module.tree, bound)}
    shorter = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    used += [use for key, use in chains.items() if key not in shorter and _is_private(use[1])]
    used += _magic(module.tree, chains)
    return used + _options(module.tree) if bound else used


def variables_in(module: Module) -> list[Use]:
    """As strings of their own, and as keywords; a docstring only speaks of them."""
    found: list[Use] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.keyword) and node.arg:
            found.append((node.value.lineno, node.arg))
    return [use for use in found if _VARIABLE.fullmatch(use[1]) and use[1] not in DOCUMENTED_VARIABLES]


def _is_private(name: str) -> bool:
    package, *parts = name.split(".")
    return package == "ray" and (parts[:2] == ["train", "v2"] or any(map(_is_hidden, parts)))


def _is_hidden(part: str) -> bool:
    """Not ``__version__`` and the like, which are Python's."""
    return part.startswith("_") and (not part.endswith("__") or part.startswith("__ray_"))


def _bound_to_ray(module: Module) -> dict[str, str]:
    """The local names of what is imported from Ray -> what it is there."""
    bound: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: target for name, target in bound.items() if target.partition(".")[0] == "ray"}


def _name_of(node: ast.expr, bound: Mapping[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return bound.get(name)
        case ast.Attribute(value=value, attr=attr):
            before = _name_of(value, bound)
            return before and f"{before}.{attr}"
        case _:
            return None


def _chains(tree: ast.AST, bound: Mapping[str, str]) -> Iterator[tuple[ast.expr, str]]:
    """Attributes of what is imported from Ray, also those that ``getattr`` is asked for by name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if name := _name_of(node, bound):
                yield node, name
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[of, ast.Constant(value=str(attr)), *_]
            ):
                if name := _name_of(of, bound):
                    yield node, f"{name}.{attr}"


def _replaced(tree: ast.AST, bound: Mapping[str, str]) -> Iterator[Use]:
    """What is put in the place of a public name; a private one is seen anyway."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                name = _name_of(node, bound)
            case ast.Call(
                func=ast.Name(id="setattr" | "delattr"), args=[of, ast.Constant(value=str(attr)), *_]
            ):
                name = (before := _name_of(of, bound)) and f"{before}.{attr}"
            case _:
                continue
        if name and not _is_private(name):
            yield node.lineno, f"{name} = ..."


def _magic(tree: ast.AST, chains: Mapping[int, Use]) -> list[Use]:
    """Ray's own on whatever object, such as an actor."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return [
        (node.lineno, node.attr)
        for node in attributes
        if node.attr.startswith("__ray_") and id(node) not in chains
    ]


def _options(tree: ast.AST) -> list[Use]:
    """Keywords with an underscore in front, of any call in a module that knows Ray: none of ours has one."""
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    return [(node.value.lineno, f"{node.arg}=") for node in keywords if node.arg and node.arg.startswith("_")]
