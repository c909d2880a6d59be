"""All that the doctor saw, before anybody judges it: plain data. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from checkpointing.stores.probing import StoreFacts
from cluster.inventory import Vendor
from cluster.probe.node_facts import LinkRate, NodeFacts

Level = Literal["ok", "warning", "failed"]


class Unusable(Exception):
    """The cluster can't even be asked; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``remedy`` is what to do about it, empty where there is nothing to do."""

    level: Level
    subject: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A node, as the inventory knows it before it is asked. ``in_use`` says what somebody else has of it."""

    node_id: str
    name: str
    group: str
    vendor: Vendor
    promised_devices: int
    simulated: bool = False
    in_use: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A node's clock minus the driver's; the truth is within ``uncertainty_s`` of it."""

    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """``facts`` is the reason where the node did not answer. ``sees_store``: None where it was not asked."""

    asked: Asked
    facts: NodeFacts | str
    skew: Skew | None = None
    sees_store: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """All-reduce of a group, within one ``node`` or, where that is None, across one device of each node.
    ``rate`` is the reason where it did not work.
    """

    group: str
    node: str | None
    rate: LinkRate | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a cluster file says of a group: at most so many nodes, each with so many devices."""

    group: str
    num_nodes: int
    devices_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of one run. ``num_kept`` is the most that retention keeps at a time, with the one being saved;
    ``grows`` says what comes on top of it for as long as the run takes. Local bytes are of its
    fullest node. ``refused`` is why no group here can take it.
    """

    run: str
    generation_bytes: int
    num_kept: int
    grows: str | None
    local_folder: str | None
    local_bytes: int | None
    save_every_s: float | None
    refused: str | None

    @property
    def store_bytes(self) -> int:
        return self.generation_bytes * self.num_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """``own_versions`` are the driver's. Who is ``draining`` is not asked."""

    source: str
    own_versions: Mapping[str, str | None]
    answers: tuple[NodeAnswer, ...]
    store: StoreFacts
    links: tuple[Link, ...] = ()
    promises: tuple[Promise, ...] = ()
    forecast: Forecast | None = None
    draining: tuple[str, ...] = ()
    is_cluster: bool = False
