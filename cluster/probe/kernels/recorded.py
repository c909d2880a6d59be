"""What healthy devices computed of the known kernels, by model, platform and torch: a file of JSON. Pure.

A driver or a firmware is not part of the key. Where one changes the results, they are recorded anew.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from cluster.probe.node_facts import NodeFacts

_SCHEMA = 1
_MOST_TOLD = 200  # characters of what a file holds, in a message


class NotRecorded(Exception):
    """A file does not hold recorded digests. The message says which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """``digests`` are by kernel. ``torch`` is its whole version, with the local build."""

    model: str
    platform: str
    torch: str
    digests: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.model, self.platform, self.torch


def in_package() -> tuple[Recorded, ...]:
    text = (files("cluster.probe.kernels") / "recorded.json").read_text(encoding="utf-8")
    return parsed(text, "recorded.json")


def of_nodes(nodes: Iterable[NodeFacts]) -> tuple[Recorded, ...]:
    """What these nodes' devices computed. Raises ``NotRecorded`` if two of one kind differ, or none has
    computed anything.
    """
    by_kind: dict[tuple[str, str, str], dict[str, str]] = {}
    for facts in nodes:
        for one in facts.kernels:
            kind = facts.kind_of(one)
            before = by_kind.setdefault(kind, {}).setdefault(one.kernel, one.digest)
            if before != one.digest:
                raise NotRecorded(f"not recorded: devices of {kind[0]} differ in {one.kernel}")
    if not by_kind:
        raise NotRecorded("not recorded: no device has computed all kernels, and each twice alike")
    return tuple(
        Recorded(model=model, platform=platform, torch=torch, digests=digests)
        for (model, platform, torch), digests in by_kind.items()
    )


def as_text(recorded: Iterable[Recorded]) -> str:
    """The file's text. Of one kind the last one counts."""
    by_kind = {one.kind: one for one in recorded}
    body = {"schema": _SCHEMA, "recorded": [asdict(by_kind[kind]) for kind in sorted(by_kind)]}
    return json.dumps(body, indent=1) + "\n"


def parsed(text: str, where: str) -> tuple[Recorded, ...]:
    """What a file's ``text`` holds. Raises ``NotRecorded``, whose message begins with ``where``."""
    try:
        body = json.loads(text)
        if body["schema"] != _SCHEMA:
            raise NotRecorded(f"{where}: has schema {body['schema']!r:.{_MOST_TOLD}}, expected {_SCHEMA}")
        return tuple(_recorded(one) for one in body["recorded"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotRecorded(
            f"{where}: holds no digests ({error!s:.{_MOST_TOLD}}); expected a file that --record-golden wrote"
        ) from error


def _recorded(one: Mapping[str, Any]) -> Recorded:
    digests = dict(one["digests"])
    found = Recorded(model=one["model"], platform=one["platform"], torch=one["torch"], digests=digests)
    if not all(isinstance(text, str) for text in (*found.kind, *digests, *digests.values())):
        raise TypeError("a value is no text")
    if not digests:
        raise ValueError("a model has none")
    return found
