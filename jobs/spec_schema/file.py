"""Reads a YAML file as a strict, typed spec. Sweeps and runs share this code.

An unknown key, a wrong value or an impossible combination raises ``SpecError``. Each problem is one line:
place, found, expected, and the nearest known word.
"""

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cluster.yaml_file import YamlError, parse_yaml, read_yaml
from jobs.commandline.set_values import value_text, without_secret
from jobs.commandline.usage_error import SpecError, nearest
from jobs.training.task.job import OptimizerConfig, Precision, Strategy
from jobs.training.task.settings import Attention, Checkpointing, Compile, CrossEntropy, Fp8, Offload
from reporting.results.redaction import REDACTED, is_secret, redacted
from reporting.results.settings import NUMBERS, SETTINGS


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else (value,)


def _number_as_text(value: object) -> object:
    """YAML reads ``NCCL_P2P_DISABLE: 1`` as a number, but a variable's value is text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _one_of(known: Sequence[str], noun: str, elsewhere: Mapping[str, str] | None = None) -> BeforeValidator:
    """``elsewhere`` has values that belong to another key, and what to write instead."""

    def check(value: object) -> object:
        if isinstance(value, str) and elsewhere and value in elsewhere:
            raise ValueError(f"{value!r} is not a {noun} ({', '.join(known)}); {elsewhere[value]}")
        if value not in known:
            hint = nearest(str(value), list(known))
            raise ValueError(f"{value!r} is not a {noun} ({', '.join(known)}){hint}")
        return value

    return BeforeValidator(check)


def _count_or_max(value: object) -> object:
    if value == "max" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"found {value!r}, expected a whole number of at least 1, or max")


def _folder_of_each_node(value: object) -> object:
    if isinstance(value, str) and value and (not value.startswith(("/", "~/")) or "\0" in value):
        raise ValueError(
            f"found {value!r}, expected a folder from / on, such as /nvme/run, or from ~/ on (each node's "
            "own home): a process starts anywhere"
        )
    return value


def _plain_name(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; put it in quotes")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError(
            f"{value!r} is not a name (letters, digits and ._- only, at most 64, no leading dot)"
        )
    return value


def check_plain_name(value: str, place: str) -> str:
    """Checks a name given on the command line. ``place`` is the flag, for the message."""
    try:
        return str(_plain_name(value))
    except ValueError as error:
        raise SpecError([f"{place}: {error}"]) from None


Name = Annotated[str, BeforeValidator(_plain_name)]
StrategyName = Annotated[Strategy, _one_of(get_args(Strategy), "strategy")]
_FP8_INSTEAD = {"fp8": "expected precision: bf16 with fp8: rowwise"}
PrecisionName = Annotated[Precision, _one_of(get_args(Precision), "precision", _FP8_INSTEAD)]
CheckpointingName = Annotated[
    Checkpointing, _one_of(get_args(Checkpointing), "way of activation checkpointing")
]
CrossEntropyName = Annotated[CrossEntropy, _one_of(get_args(CrossEntropy), "way of cross-entropy")]
CompileName = Annotated[Compile, _one_of(get_args(Compile), "way of compiling")]
AttentionName = Annotated[Attention, _one_of(get_args(Attention), "kernel for attention")]
Fp8Name = Annotated[Fp8, _one_of(get_args(Fp8), "way of fp8")]
OffloadName = Annotated[Offload, _one_of(get_args(Offload), "part of the state to offload")]
MicroBatch = Annotated[int | Literal["max"], BeforeValidator(_count_or_max)]
# The settings among which ``--best`` may look for the best. What it computes with in fp8 is another question
# unless somebody asks: losses differ.
SEARCHABLE = ("strategy", "micro_batch", *SETTINGS, *NUMBERS)
SEARCHED = tuple(axis for axis in SEARCHABLE if axis != "fp8")
SettingName = Annotated[str, _one_of(SEARCHABLE, "setting to choose")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, BeforeValidator(_number_as_text)]
NodeFolder = Annotated[str, Field(min_length=1), BeforeValidator(_folder_of_each_node)]
Count = Annotated[int, Field(ge=1)]
Every = Annotated[int, Field(ge=0)]
Span = Annotated[float, Field(gt=0)]

_Value = TypeVar("_Value")
Several = Annotated[tuple[_Value, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


class Strict(BaseModel):
    """A section whose keys belong to the spec alone.

    A section with a dataclass of another package is that dataclass. pydantic is as strict with it, and reads
    bounds from its fields' ``metadata``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _makes_sense(optimizer: OptimizerConfig) -> OptimizerConfig:
    """Checks the schedule as the user wrote it.

    The check leaves out a run's own length: a short training may well end within the warm-up.
    """
    decay_steps, warmup_steps = optimizer.decay_steps, optimizer.warmup_steps
    if optimizer.schedule == "constant" and (decay_steps or optimizer.min_lr_ratio):
        key = "decay_steps" if decay_steps else "min_lr_ratio"
        raise ValueError(f"{key} means nothing where schedule is constant; expected linear or cosine")
    if decay_steps is not None and decay_steps <= warmup_steps:
        raise ValueError(
            f"decay_steps {decay_steps} lies within the warm-up of {warmup_steps} steps; "
            "expected more, since they count from the first step"
        )
    return optimizer


Optimizer = Annotated[OptimizerConfig, AfterValidator(_makes_sense)]


class SpecKind(NamedTuple):
    """What messages call a spec, the command that takes it, and the key by which it is known."""

    kind: str
    command: str
    named: str


SWEEPS = SpecKind(kind="sweep", command="sweep", named="models")
RUNS = SpecKind(kind="run", command="train", named="model")


class SpecFile(Strict):
    """A spec in a file. ``example`` is a sample setting for messages. ``other`` may be given in its place."""

    of: ClassVar[SpecKind]
    other: ClassVar[SpecKind]
    example: ClassVar[str]

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Self:
        """Loads the spec from ``path``, then applies the ``a.b=c`` settings. Each value is read as YAML."""
        data = _read(cls, path)
        for setting in overrides:
            _apply(cls, data, setting)
        return cls.of_data(data, path, {setting.partition("=")[0] for setting in overrides})

    @classmethod
    def of_data(
        cls, data: dict[str, Any], place: Path | str, set_paths: AbstractSet[str] = frozenset()
    ) -> Self:
        """The spec with these keys. ``place`` is where they stand, for messages; ``set_paths`` are flags'."""
        try:
            # A strict model accepts a list for a tuple only in JSON.
            return cls.model_validate_json(_as_json(cls, data, place))
        except ValidationError as error:
            problems = [_problem(cls, details, place, set_paths) for details in error.errors()]
            raise SpecError(problems) from None


def _read(model: type[SpecFile], path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path, f"a {model.of.kind}'s YAML file")
    except YamlError as error:
        raise SpecError([str(error)]) from None
    if not isinstance(data, dict):
        raise SpecError([f"{path}: found {_kind(data)}, expected a mapping with {_required(model)}"])
    if _is_of_other(model, data):
        raise SpecError(
            [f"{path}: is a {model.other.kind}'s spec; `longhaul {model.other.command} {path}` takes it"]
        )
    return data


def _is_of_other(model: type[SpecFile], data: dict[str, Any]) -> bool:
    """One key that is not known here may be misspelt, two are no accident."""
    num_unknown = len(data.keys() - model.model_fields.keys())
    return model.of.named not in data and model.other.named in data and num_unknown > 1


def _kind(data: object) -> str:
    return {type(None): "nothing", list: "a list"}.get(type(data), "a single value")


def _as_json(model: type[SpecFile], data: dict[str, Any], path: Path | str) -> str:
    try:
        text = json.dumps(data, default=str, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise SpecError([f"{path}: is not text; expected a {model.of.kind}'s YAML file"]) from None
    except (TypeError, ValueError, RecursionError):
        problem = f"{path}: a key is not text, or a value holds itself; expected plain YAML"
        raise SpecError([problem]) from None
    return text


def _apply(model: type[SpecFile], data: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise SpecError([f"--set {without_secret(setting)}: expected key=value, such as {model.example}"])
    try:
        value = parse_yaml(value_text(text, f"--set {path}"))
    except YamlError:
        shown = without_secret(setting)
        value = shown.partition("=")[2]
        raise SpecError([f"--set {shown}: {value!r} is not a YAML value"]) from None
    for key in keys[:-1]:
        below = data.setdefault(key, {})
        if not isinstance(below, dict):
            # Without the value: nobody knows whether it is a secret where no such key is.
            raise SpecError([f"--set {path}: {key!r} holds a value, not a section"])
        data = below
    data[keys[-1]] = value


def _problem(model: type[SpecFile], details: Any, path: Path | str, set_paths: AbstractSet[str]) -> str:
    # Numbers are positions in a list; "[key]" says that the key itself is wrong.
    keys = [key for key in details["loc"] if isinstance(key, str) and key != "[key]"]
    place = ".".join(keys)
    from_flag = any(_is_within(place, set_path) or _is_within(set_path, place) for set_path in set_paths)
    where = f"--set {place}" if from_flag else f"{path}: {place}".removesuffix(": ")
    return f"{where}: {_found_and_expected(model, details, keys)}"


def _is_within(place: str, other: str) -> bool:
    return f"{place}.".startswith(f"{other}.")


def _found_and_expected(model: type[SpecFile], details: Any, keys: list[str]) -> str:
    found, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "value_error":
            # A message of ours may repeat what was found.
            return str(context["error"]).replace(repr(found), repr(_without_secrets(found, keys)))
        case "extra_forbidden" | "unexpected_keyword_argument":
            known = _keys_beside(model, keys[:-1])
            return f"is not a key here ({', '.join(known)}){nearest(keys[-1], known)}"
        case "missing" if keys[1:]:
            return f"is missing; {keys[-2]} needs it"
        case "missing":
            return f"is missing; a {model.of.kind} needs {_required(model)}"
        case "literal_error":
            hint = nearest(str(found), _quoted(context["expected"]))
            return f"found {_without_secrets(found, keys)!r}, expected {context['expected']}{hint}"
        case kind:
            expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else details["msg"]
            return f"found {_without_secrets(found, keys)!r}, expected {expected}"


def _without_secrets(found: object, keys: list[str]) -> Any:
    is_hidden = isinstance(found, dict) and "environment" in keys and is_secret(keys[-1])
    return REDACTED if is_hidden else redacted(found, keys[-1] if keys else "")


# Pydantic's error types in a user's words.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "some text",
    "string_pattern_mismatch": "a variable's name",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "too_short": "at least one value",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']+)'", text)


def _required(model: type[SpecFile]) -> str:
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    return " and ".join(filter(None, [", ".join(required[:-1]), required[-1]]))


def _keys_beside(section: type, path: list[str]) -> list[str]:
    for key in path:
        section = _section_in(_types_of_keys(section).get(key)) or section
    return list(_types_of_keys(section))


def _types_of_keys(section: type) -> Mapping[str, Any]:
    """The keys of a section with their types, in the order in which they are stored."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    assert is_dataclass(section)
    types = get_type_hints(section)
    return {field.name: types[field.name] for field in fields(section)}


def _section_in(annotation: Any) -> type | None:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    found = (_section_in(part) for part in get_args(annotation))
    return next((part for part in found if part), None)
