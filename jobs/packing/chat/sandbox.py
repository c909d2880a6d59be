"""Runs chat templates, which are programs of strangers: nothing but text, in bounded time and memory.

Jinja's sandbox keeps a template from all that is not text. It does not keep it from taking forever or from
filling the memory. So each loop, each call, and all that is read, made or compared costs steps, no text or
list grows beyond a limit, and what could grow one without a step is not there: most filters, ``format``,
padding, powers, large numbers. A long template's loops and macros cost more steps than a short one's.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import wraps
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_round
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from jobs.packing.chat.bounding import Meter
from jobs.packing.chat.conversations import MOST_CHARACTERS
from jobs.packing.chat.recipe import ChatTemplate
from jobs.packing.pieces import InputError

MOST_TEXT = 2 * MOST_CHARACTERS
MOST_ITEMS = 10_000
_LARGEST_NUMBER = 2**63
_MOST_DIGITS = 20
# What stands around the words of ``{% generation %}``: two of Unicode's code points that are no characters.
BEGIN, END = "\ufdd0", "\ufdd1"
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace",
    "reverse", "round", "safe", "select", "selectattr", "sort", "string", "title", "trim", "unique", "upper",
)  # fmt: skip
# They take a text as a whole. The others go through its characters one by one, as if it were a list.
_WHOLE = frozenset(
    {"abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "last", "length"}
    | {"lower", "replace", "reverse", "round", "safe", "string", "trim", "upper"}
)
# They compare all that a list holds.
_COMPARING = frozenset({"dictsort", "max", "min", "sort", "unique"})
_COMPARING_TESTS = frozenset(
    {"in", "eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "gt", ">", "greaterthan", "le", "<="}
    | {"ge", ">="}
)
# They fill up with blanks to any width that they are told, or lead to bytes, which nothing here bounds, or
# belong to a class, not to what is counted.
_NO_METHODS = frozenset(
    {"format", "format_map", "ljust", "rjust", "center", "zfill", "expandtabs", "translate", "encode"}
    | {"maketrans", "fromkeys"}
)
# So many of a template's words, operators and calls take a step where they are done again and again.
_NODES_PER_STEP = 50
T = TypeVar("T")


class Template:
    """A compiled template. ``marks`` is true if it says by itself which words are an assistant's.

    Raises ``InputError`` if it can't be compiled.
    """

    def __init__(self, source: ChatTemplate) -> None:
        self._where = source.where
        self._tokens = dict(source.tokens)
        self._environment = _Sandbox()
        try:
            self._template = self._environment.from_string(source.text)
        except Exception as error:  # a template may make the compiler itself fail, such as by its depth
            raise self._problem(error, "is no chat template") from None
        self.marks = self._environment.marks

    def render(self, messages: list[dict[str, Any]], *, generation_prompt: bool = False) -> str:
        """The text of ``messages``. Raises ``InputError``, whose message begins with the template's place."""
        environment = self._environment
        environment.meter.reset()
        try:
            return environment.joined(
                self._template.generate(
                    messages=messages,
                    add_generation_prompt=generation_prompt,
                    tools=None,
                    documents=None,
                    **self._tokens,
                )
            )
        except Exception as error:  # whatever a stranger's program raises
            raise self._problem(error, "refuses the messages") from None

    def _problem(self, error: Exception, what: str) -> InputError:
        said = str(error).partition("\n")[0][:200] or type(error).__name__
        return InputError(
            f"{self._where}: {what} ({said}); use another with --chat-template, or mend the row"
        )


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}``, as transformers knows it."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own name and type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.marks = True  # type: ignore[attr-defined]  # it is a _Sandbox
        return [_literal(BEGIN), *body, _literal(END)]


def _literal(text: str) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text)])


class _Namespace(Namespace):
    """Without names that begin with an underscore, which lead into Python."""

    def __setitem__(self, name: str, value: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}")
        super().__setitem__(name, value)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_printable
        )
        self.meter = Meter()
        self.marks = False
        self._weight = 0
        self.concat = self.joined  # type: ignore[method-assign]  # what templates join all texts with
        given = self.filters | {"round": _round}
        self.filters = {
            name: self._costing(given[name], name in _COMPARING, name in _WHOLE) for name in _FILTERS
        }
        self.filters |= {"tojson": self._to_json, "join": self._join, "replace": self._replace}
        self.filters |= {
            "string": _text_of,
            "list": self._list,
            _LOOP: self.meter.loop,
            _CONCAT: self._concat,
        }
        self.filters |= {_FLAT: _flat, _COST: self.meter.everything, _CUT: self.meter.values}
        self.filters[_KEY] = self.meter.key
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: self._costing(run, name in _COMPARING_TESTS) for name, run in tests.items()}
        self.globals.clear()
        self.globals.update(range=_range, namespace=_namespace, raise_exception=_raise)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            weight = nodes.Const(_weight_of(loop))
            loop.iter = _filtered(loop.iter, _LOOP, weight)  # type: ignore[arg-type]  # it is an expression
        self._weight = _weight_of(template)
        return _with_bounds(template)

    def joined(self, texts: Iterable[str]) -> str:
        text = _joined(texts)
        self.meter.characters(len(text))
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        __self.meter.values(args)
        if isinstance(owner, str | list | tuple | range):
            __self.meter.everything(owner)
        if isinstance(owner, str | list | tuple | range | LoopContext):
            # Methods search what they belong to, and what they are given.
            for one in (*args, *kwargs.values()):
                __self.meter.everything(one)
        elif isinstance(owner, Mapping) and args:
            __self.meter.key(args[0])
        if isinstance(owner, str):
            name = getattr(__obj, "__name__", "")
            if name == "join":
                return __self._join(args[0], owner)
            if name == "replace":
                return __self._replace(owner, *args)
        __self.meter.step(1 + __self._weight * isinstance(__obj, Macro | BlockReference))
        if isinstance(__obj, LoopContext):  # what a recursive loop goes into
            args = (__self.meter.loop(args[0], __self._weight), *args[1:])
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.values(left)
        self.meter.values(right)
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"{operator} is not for templates")
        if operator == "*":
            return _bounded(_product(left, right))
        return _bounded(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # What escapes text has methods of its own, and numbers turn into bytes of any length.
        is_plain = not isinstance(obj, int | float) and (not isinstance(obj, str) or hasattr(str, attr))
        return is_plain and attr not in _NO_METHODS and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.meter.key(argument))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None  # ``is_safe_attribute`` refuses both methods.

    def _costing(
        self, run: Callable[..., Any], is_comparing: bool = False, takes_whole: bool = True
    ) -> Callable[..., Any]:
        @wraps(run)
        def costing(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            for one in (*args, *kwargs.values()):
                if isinstance(one, str) and not takes_whole:
                    self.meter.each_character(one)
                elif is_comparing:
                    self.meter.everything(one)
                elif isinstance(one, str):
                    self.meter.characters(len(one))
            found = run(*args, **kwargs)
            return self.meter.each(found) if isinstance(found, Iterator) else _bounded(found)

        return costing

    def _list(self, items: Iterable[T]) -> list[T]:
        return [_few(number, item) for number, item in enumerate(self.meter.each(items))]

    def _concat(self, parts: list[Any]) -> str:
        return self.joined(map(_text_of, parts))

    def _join(self, items: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        texts = (item if attribute is None else self.getitem(item, attribute) for item in items)
        found: list[str] = []
        for text in self.meter.each(texts):
            found += [str(d), _text_of(text)] if found else [_text_of(text)]
        return self.joined(found)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers writes it: HTML is not escaped."""
        if (indent or 0) > 8 or any(len(one) > 8 for one in separators or ()):
            raise SecurityError("its JSON is too wide")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return self.joined(encoder.iterencode(_flat(self.meter.everything(value))))

    def _replace(self, s: Any, old: Any, new: Any, count: int = -1) -> str:
        text, wanted, other = _text_of(s), _text_of(old), _text_of(new)
        self.meter.step()
        self.meter.characters(len(text))
        if len(text) + (text.count(wanted) + 1) * len(other) > MOST_TEXT:
            raise _too_long()
        return text.replace(wanted, other, -1 if count is None else count)


_LOOP, _CONCAT, _FLAT, _COST, _CUT, _KEY = "_loop", "_concat", "_flat", "_cost", "_cut", "_key"


def _filtered(node: nodes.Expr, name: str, *given: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(given), [], None, None, lineno=node.lineno)


def _weight_of(node: nodes.Node) -> int:
    return sum(1 for _ in node.find_all(nodes.Node)) // _NODES_PER_STEP


class _Bounding(NodeTransformer):
    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _COST)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _COST)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, _CUT)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _FLAT)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered(pair.key, _KEY)
        return _filtered(node, _FLAT)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _FLAT) if node.ctx == "load" else node


def _with_bounds(template: nodes.Template) -> nodes.Template:
    bounded: nodes.Template = _Bounding().visit(template)
    assert template.environment is not None
    bounded.set_environment(template.environment)
    return bounded


def _flat(value: T) -> T:
    """A list in which the same lists are again and again is small, and endless to print or to compare."""
    waiting: list[Any] = [value]
    for _ in range(MOST_ITEMS):
        if not waiting:
            return value
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    raise SecurityError(f"a list or dict holds more than {MOST_ITEMS:,} values")


def _bounded(value: T) -> T:
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise _too_long()
    elif isinstance(value, list | tuple | dict) and len(value) > MOST_ITEMS:
        raise SecurityError(f"a list has more than {MOST_ITEMS:,} values")
    elif isinstance(value, int) and abs(value) >= _LARGEST_NUMBER:
        raise SecurityError("a number is too large")
    return value


def _few(number: int, item: T) -> T:
    if number >= MOST_ITEMS:
        raise SecurityError(f"a list has more than {MOST_ITEMS:,} values")
    return item


def _product(left: Any, right: Any) -> Any:
    sized = [one for one in (left, right) if isinstance(one, Sized)]
    times = [one for one in (left, right) if not isinstance(one, Sized)]
    if not sized:
        if any(abs(one) >= _LARGEST_NUMBER for one in times):
            raise SecurityError("a number is too large")
        return left * right
    most = MOST_TEXT if isinstance(sized[0], str) else MOST_ITEMS
    if len(sized[0]) * max((int(one) for one in times), default=0) > most:
        raise _too_long()
    return left * right


def _joined(texts: Iterable[str]) -> str:
    found: list[str] = []
    length = 0
    for text in texts:
        length += len(text)
        if length > MOST_TEXT:
            raise _too_long()
        found.append(text)
    return "".join(found)


def _printable(value: Any) -> Any:
    """What ``{{ }}`` may print. Lists go through ``tojson``, whose length is known."""
    return value if isinstance(value, str | jinja2.Undefined) else _text_of(value)


def _text_of(value: Any) -> str:
    if isinstance(value, Sized) and not isinstance(value, str | jinja2.Undefined):
        raise SecurityError(f"it writes a {type(value).__name__} as text; use tojson")
    if isinstance(value, int) and abs(value) >= _LARGEST_NUMBER:
        raise SecurityError("a number is too large")
    return str(value)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > _MOST_DIGITS:  # Jinja takes ten to that power.
        raise SecurityError(f"it rounds to more than {_MOST_DIGITS} digits")
    return do_round(value, precision, method)


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > MOST_ITEMS:
        raise SecurityError(f"a range has more than {MOST_ITEMS:,} numbers")
    return found


def _namespace(**values: Any) -> _Namespace:
    if wrong := [name for name in values if name.startswith("_")]:
        raise SecurityError(f"a namespace has no {wrong[0]!r}")
    return _Namespace(**values)


def _raise(message: object) -> None:
    raise jinja2.TemplateError(str(message)[:200])


def _too_long() -> SecurityError:
    return SecurityError(f"a text gets longer than {MOST_TEXT:,} characters")
