"""What ranks tell each other comes back as it was, and nothing else comes in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.generations.choice import Candidate, Decision
from jobs.training.device.identities import DeviceIdentity
from jobs.training.ranks.typed_json import decode, encode
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task
from tests.unit.small_generations import cut_of, part_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    word: Literal["a", "b"]
    inner: Inner | None
    rows: tuple[tuple[str, float], ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)


CUT = cut_of(3, term=1, number=1)
WHOLE = Outer(
    word="a", inner=Inner(number=3), rows=(("x", 0.1), ("y", math.inf)), other={"z": [1, {"q": None}]}
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Outer, WHOLE),
        (Outer | None, None),
        (bool, True),
        (float, 0.1 + 0.2),
        (float, 3),
        (str | None, "ü\u2028"),
        (list[tuple[int, bool]], [(1, True), (2, False)]),
        (StopRequest | None, StopRequest(aim="stop", why="Ctrl-C")),
        (DeviceIdentity, DeviceIdentity(node="n", platform="cpu", device_id="process-1")),
        (Decision, Decision(chosen=Candidate(name="g", step=1, is_stored=True), trail=("g: chosen",))),
        (list[tuple[Cut, FilePart]], [(CUT, part_of(CUT, 0))]),
    ],
)
def test_what_is_told_comes_back_equal(kind: Any, value: Any) -> None:
    found = decode(kind, encode(value))
    assert (found, type(found)) == (value, type(value))


def test_a_float_that_is_not_finite_comes_back_too() -> None:
    assert math.isnan(decode(float, encode(math.nan)))
    assert decode(list[float], encode([math.inf, -math.inf, -0.0])) == [math.inf, -math.inf, -0.0]


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        (int, b"true", "it is true, expected int"),
        (bool, b"1", "it is 1, expected bool"),
        (float, b'"1"', 'it is "1", expected a number'),
        (str, b"null", "it is null, expected str"),
        (StopRequest | None, b'{"aim":"explode","why":""}', 'expected one of move'),
        (StopRequest | None, b'{"aim":"stop"}', "it has no why"),
        (Inner, b'{"number":1,"__class__":"os.system"}', "expected the fields of Inner"),
        (tuple[int, str], b'[1,"a","b"]', r'it is \[1, "a", "b"\], expected 2 values'),
        (list[tuple[int, bool]], b"[[1,true],[2,3]]", r"it\[1\]\[1\] is 3, expected bool"),
        (Mapping[str, float], b"[]", r"it is \[\], expected an object"),
        (int | str, b"[]", "expected int; or .*expected str"),
        (int, b"{", "Expecting"),
        (int, b"\xff", "codec"),
        (list[Any], b"[" * 100_000, "nested too deeply"),
        (Task, b'"' + b"x" * 1000 + b'"', r'it is "x{56}\.\.\., expected the fields of Task'),
    ],
)  # fmt: skip
def test_what_is_none_of_it_is_said_to_be_wrong(kind: Any, data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode(kind, data)


def test_what_is_no_plain_data_can_not_be_told() -> None:
    with pytest.raises(TypeError, match="object is no plain data"):
        encode({"x": object()})
    with pytest.raises(TypeError, match="is no type of plain data"):
        decode(object, b"1")
