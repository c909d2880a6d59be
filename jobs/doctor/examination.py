"""The observations of ``longhaul doctor``, as plain data, before any check. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from checkpointing.stores.probing import StoreFacts
from cluster.inventory import Vendor
from cluster.probe.kernels.recorded import Recorded
from cluster.probe.node_facts import LinkRate, NodeFacts
from cluster.probe.versions import Supported

Level = Literal["ok", "warning", "failed"]


class Unusable(Exception):
    """The cluster can't be asked at all. The message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check. ``remedy`` says what to do, and is empty if nothing needs to be done."""

    level: Level
    subject: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A node as the inventory describes it. ``in_use`` says what other jobs use of the node."""

    node_id: str
    name: str
    group: str
    vendor: Vendor
    promised_devices: int
    simulated: bool = False
    in_use: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A node's clock minus the driver's. The true value is within ``uncertainty_s`` of ``offset_s``."""

    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """The answer of one node. ``facts`` is a reason in words if the node did not answer.

    ``sees_store`` is None if the node was not asked about the store.
    """

    asked: Asked
    facts: NodeFacts | str
    skew: Skew | None = None
    sees_store: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A measured all-reduce in a group, within one ``node``, or between it and ``peer``; if ``node`` is None,
    across one device of each node.

    ``rate`` is a reason in words if the all-reduce failed. ``backend`` is what a pair was tried over.
    """

    group: str
    node: str | None
    rate: LinkRate | str
    peer: str | None = None
    backend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a cluster file says about a group: at most this many nodes, each with this many devices."""

    group: str
    num_nodes: int
    devices_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The space that one run will take.

    ``num_kept`` is the most generations that exist at a time, with the one being saved. ``grows`` says what
    is kept in addition for as long as the run lasts. ``local_bytes`` is for the node with the most ranks.
    ``refused`` says why no group can take the run.
    """

    run: str
    generation_bytes: int
    num_kept: int
    grows: str | None
    local_folder: str | None
    local_bytes: int | None
    save_every_s: float | None
    refused: str | None
    local_max_bytes: int | None = None

    @property
    def store_bytes(self) -> int:
        return self.generation_bytes * self.num_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All observations. Nodes in ``draining`` are listed but not asked.

    ``own_versions`` are the driver's; ``tested`` are those that this Longhaul was tested with, and
    ``supported`` the ranges that it works with, by package. ``golden`` is what healthy devices computed.
    """

    source: str
    own_versions: Mapping[str, str | None]
    answers: tuple[NodeAnswer, ...]
    store: StoreFacts
    links: tuple[Link, ...] = ()
    promises: tuple[Promise, ...] = ()
    forecast: Forecast | None = None
    draining: tuple[str, ...] = ()
    is_cluster: bool = False
    tested: Mapping[str, str] = field(default_factory=dict)
    supported: Mapping[str, Supported] = field(default_factory=dict)
    golden: tuple[Recorded, ...] = ()
