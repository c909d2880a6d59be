"""Reads from the product's sources, without importing them, which texts it can say.

A *template* is a text as it stands in the source, with ``…`` for each value that is filled in.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house import ROOMS, ROOT

GAP = "…"
# What % and the shell fill in.
_OF_TEXTS = (ast.Expr, ast.Constant, ast.JoinedStr, ast.BinOp)
_FILLED_IN = re.compile(r"%(?:\.\d+)?[sdrfg]|\$\{[^}]*\}|\$\([^)]*\)+|\$[\w*]+")


def is_said(message: str, templates: frozenset[str]) -> bool:
    """Whether one template has all words of the message, in their order; gaps stand for anything."""
    parts = [part.strip() for part in message.split(GAP)]
    return any(_in_order(parts, template) for template in templates)


def _in_order(parts: list[str], template: str) -> bool:
    end = 0
    for part in parts:
        begin = template.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


@cache
def templates_of_the_product() -> frozenset[str]:
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in (".py", ".sh"))
    return frozenset(template for file in files for template in _templates_in(file))


def _templates_in(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".sh":
        return (_FILLED_IN.sub(GAP, line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    return templates(text)


def templates(source: str) -> Iterator[str]:
    """Those of a module, also inside of other ones; docstrings are none."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _OF_TEXTS)]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Expr) and id(node) not in docstrings and (text := _template(node)):
            yield text


def _template(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return _FILLED_IN.sub(GAP, text)
        case ast.JoinedStr(values=values):
            return "".join(_template(value) or GAP for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_template(left) or GAP) + (_template(right) or GAP)
        case _:
            return None
