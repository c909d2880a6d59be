"""Formats ``longhaul cluster show``: a table for people, JSON for programs. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cluster.nodes import SeenNode
from cluster.promised_vs_live import NodeFinding
from jobs.commandline.text_table import TextColumn, as_text

_ID_CHARS = 12


def as_data(address: str, nodes: Sequence[SeenNode], findings: Sequence[NodeFinding] = ()) -> dict[str, Any]:
    groups = sorted({node.group for node in nodes})
    return {
        "address": address,
        "groups": [
            {"group": group, "nodes": [asdict(node) for node in nodes if node.group == group]}
            for group in groups
        ],
        "findings": [asdict(finding) for finding in findings],
    }


def as_lines(address: str, nodes: Sequence[SeenNode], findings: Sequence[NodeFinding] = ()) -> str:
    columns = [
        TextColumn(title="group", texts=tuple(node.group for node in nodes)),
        TextColumn(title="node", texts=tuple(node.name for node in nodes)),
        TextColumn(title="state", texts=tuple(node.state for node in nodes)),
        TextColumn(title="GPUs", texts=tuple(str(node.num_gpus) for node in nodes), is_number=True),
        TextColumn(title="CPUs", texts=tuple(str(node.num_cpus) for node in nodes), is_number=True),
        TextColumn(title="id", texts=tuple(node.node_id[:_ID_CHARS] for node in nodes)),
        TextColumn(title="remarks", texts=tuple("; ".join(_remarks(node)) for node in nodes)),
    ]
    lines = [f"the Ray cluster at {address}", as_text(columns).rstrip("\n")]
    return "\n".join([*lines, *(finding.describe() for finding in findings)])


def _remarks(node: SeenNode) -> list[str]:
    remarks = ["simulated"] if node.is_simulated else []
    if node.times_lost and node.state in ("alive", "draining"):
        remarks.append(f"came back, was lost {_times(node.times_lost)}")
    elif node.times_lost > 1:
        remarks.append(f"lost {_times(node.times_lost)}")
    if node.why_gone:
        remarks.append(node.why_gone)
    return remarks


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
