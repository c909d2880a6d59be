"""Stands where a node's raylet expects Ray's agent, which measures the node for a dashboard.

The raylet starts ``python -S -E agent_stand_in.py --session-dir=… --node-id=…`` and waits for three ports.
A Ray that is installed without a dashboard answers -1. The raylet ends when this process ends.

It uses only the standard library, so that it starts in milliseconds.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_NO_PORT = "-1"
_LOOK_EVERY_S = 1.0


def main(words: Sequence[str]) -> None:
    raylet = os.getppid()
    tell_no_ports(Path(_value(words, "--session-dir")), _value(words, "--node-id"))
    while os.getppid() == raylet:
        time.sleep(_LOOK_EVERY_S)


def tell_no_ports(folder: Path, node_id: str) -> None:
    """Writes a file for each port. A reader finds none of it, or all."""
    for port in PORTS:
        path = folder / f"{port}_{node_id}"
        written = path.with_name(f"{path.name}.new")
        written.write_text(_NO_PORT, encoding="ascii")
        written.replace(path)


def _value(words: Sequence[str], name: str) -> str:
    (value,) = (word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}="))
    return value


if __name__ == "__main__":
    main(sys.argv[1:])
