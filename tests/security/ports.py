"""What somebody on the network finds of a sweep and of a long run on one machine: sockets beyond loopback."""

import ipaddress
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.security.attack import GotIn, NotTried, Product, product
from tests.security.ray_run import RUN, family

_SWEEP = """\
name: s
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [2], seq_len: [32], micro_batch: [1]}
measure: {steps: 4, warmup: 1}
repeats: 1
"""


def attack(tree: Path) -> str:
    run = RUN.replace("world_size: 1", "world_size: 2").replace("1000000", "8")
    seen: dict[str, set[tuple[str, str]]] = {}
    with product(tree) as its:
        for verb, spec in (("train", run), ("sweep", _SWEEP)):
            (its.home / f"{verb}.yaml").write_text(spec, encoding="utf-8")
            seen[verb] = _listening(its, verb)
    beyond = [
        f"{verb}: {name} at {address}"
        for verb, ends in seen.items()
        for name, address in sorted(ends)
        if not _is_loopback(address)
    ]
    if beyond:
        raise GotIn(f"{len(beyond)} kinds of sockets listen beyond loopback, such as {beyond[0]}")
    names = {name for ends in seen.values() for name, _ in ends}
    return f"all sockets of a run and a sweep listen on loopback: {', '.join(sorted(names))}"


def _listening(its: Product, verb: str) -> set[tuple[str, str]]:
    """From its first process to its last: who listens, and where."""
    found: set[tuple[str, str]] = set()
    with its.running(verb, its.home / f"{verb}.yaml", "--store", its.home / "store") as process:
        while process.poll() is None:
            for one in family(process):
                with suppress(psutil.Error):
                    ends = [end for end in one.net_connections("tcp") if end.status == psutil.CONN_LISTEN]
                    found |= {(one.name().partition(".")[0].strip(), end.laddr.ip) for end in ends}
            time.sleep(0.1)
    if process.returncode != 0 or not {"raylet", "gcs_server"} <= {name for name, _ in found}:
        raise NotTried(f"no {verb} to look at: {its.said()[-300:]}")
    return found


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return ((found.version == 6 and found.ipv4_mapped) or found).is_loopback
