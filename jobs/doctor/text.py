"""Formats an examination for people: a table per node, links, store, forecast, then what to do. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

from checkpointing.stores.probing import StoreFacts
from cluster.probe.node_facts import NodeFacts
from jobs.doctor.examination import Asked, Examination, Finding, Forecast, Link, NodeAnswer, Skew
from jobs.doctor.node_checks import exit_code, worst

_VERDICTS = {"ok": "All is well.", "warning": "Usable, with warnings.", "failed": "Not usable as it is."}
_WIDTH = 18
# All pairs of six nodes.
_MOST_PAIRS = 15

Line = tuple[str, str]


def as_text(seen: Examination, findings: Sequence[Finding]) -> str:
    parts = [
        f"{len(seen.answers)} node{'' if len(seen.answers) == 1 else 's'} of {seen.source}",
        *(_block(_title(answer), _node_lines(answer)) for answer in seen.answers),
    ]
    if seen.links:
        parts.append(_block("all-reduce", [_link_line(link) for link in seen.links if not link.peer]))
    if pairs := [link for link in seen.links if link.peer]:
        parts.append(_block("all-reduce of two nodes", list(_pair_lines(pairs))))
    parts.append(_block(f"store {seen.store.url}", list(_store_lines(seen.store))))
    if seen.forecast:
        parts.append(_block(f"run {seen.forecast.run}", list(_forecast_lines(seen.forecast))))
    parts.append("\n".join([_VERDICTS[worst(findings)], *map(_finding_text, findings)]))
    return "\n\n".join(parts) + "\n"


def _block(title: str, lines: Sequence[Line]) -> str:
    width = max([_WIDTH, *(len(name) for name, _ in lines)])
    return "\n".join([title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in lines)])


def _title(answer: NodeAnswer) -> str:
    asked = answer.asked
    notes = [
        asked.vendor,
        *(["simulated"] if asked.simulated else []),
        *([f"{asked.in_use} in use"] if asked.in_use else []),
    ]
    return f"{asked.group}: {asked.name} ({', '.join(notes)})"


def _node_lines(answer: NodeAnswer) -> list[Line]:
    facts = answer.facts
    if isinstance(facts, str):
        return [("no answer", facts)]
    return [
        ("devices", _devices(facts, answer.asked)),
        ("visible", ", ".join(f"{name}={value}" for name, value in sorted(facts.visible.items())) or "all"),
        ("driver", facts.driver or "none"),
        ("telemetry", facts.telemetry or "none"),
        ("versions", ", ".join(f"{name} {value or 'none'}" for name, value in facts.versions.items())),
        *_gemm_lines(facts),
        *((f"to device {copy.device}", _rate(copy.bytes_per_s)) for copy in facts.copies),
        ("memory", _memory(facts.memory_bytes)),
        ("/dev/shm", _memory(facts.shm_bytes) if facts.shm_bytes is not None else "none"),
        *_disk_lines(facts),
        ("clock", _clock(answer.skew)),
        *(("not measured", problem) for problem in facts.problems),
    ]


def _devices(facts: NodeFacts, asked: Asked) -> str:
    promised = asked.promised_devices
    if asked.simulated:
        return f"{promised} simulated, on {facts.num_devices} CPU cores"
    name = facts.device or ("CPU cores" if facts.platform == "cpu" else "unknown")
    number = str(facts.num_devices) if facts.num_devices == promised else f"{facts.num_devices} of {promised}"
    return f"{number} x {name} ({facts.platform})"


def _gemm_lines(facts: NodeFacts) -> Iterator[Line]:
    """One line per dtype, with each device's best rate. The JSON output has every shape."""
    for dtype in sorted({gemm.dtype for gemm in facts.gemms}):
        best: dict[int, float] = {}
        for gemm in (gemm for gemm in facts.gemms if gemm.dtype == dtype):
            best[gemm.device] = max(best.get(gemm.device, 0.0), gemm.flops_per_s)
        yield f"{dtype} products", " ".join(_flops(rate) for rate in best.values()) + " TFLOP/s"


def _disk_lines(facts: NodeFacts) -> Iterator[Line]:
    if facts.disk:
        disk = facts.disk
        yield (
            "disk",
            f"{disk.folder}: {_rate(disk.write_bytes_per_s)}, {disk.fsync_s * 1e3:.1f} ms per fsync, "
            f"{disk.free_bytes / 1e9:,.1f} GB free",
        )


def _clock(skew: Skew | None) -> str:
    if skew is None:
        return "unknown"
    if abs(skew.offset_s) >= 1:
        return f"{skew.offset_s:+,.1f} s, +- {skew.uncertainty_s * 1e3:.1f} ms"
    return f"{skew.offset_s * 1e3:+.1f} ms, +- {skew.uncertainty_s * 1e3:.1f} ms"


def _link_line(link: Link) -> Line:
    name = f"{link.group}: within {link.node}" if link.node else f"{link.group}: across nodes"
    if isinstance(link.rate, str):
        return name, link.rate
    rate = link.rate
    return (
        name,
        f"{_rate(rate.bus_bytes_per_s)} ({rate.backend}, {rate.num_ranks} ranks, "
        f"{rate.size_bytes / 2**20:.0f} MiB), {rate.small_s * 1e6:,.0f} us for small ones",
    )


def _pair_lines(pairs: Sequence[Link]) -> Iterator[Line]:
    """A line for each pair. Of very many the slowest, after those that do not reach each other."""
    for (group, backend), members in groupby(pairs, key=lambda link: (link.group, link.backend)):
        found = list(members)
        if len(found) > _MOST_PAIRS:
            found.sort(key=lambda link: 0.0 if isinstance(link.rate, str) else link.rate.bus_bytes_per_s)
        for link in found[:_MOST_PAIRS]:
            rate = link.rate if isinstance(link.rate, str) else _rate(link.rate.bus_bytes_per_s)
            yield f"{group}: {link.node} - {link.peer}", f"{rate} ({backend})"
        if len(found) > _MOST_PAIRS:
            yield f"{group}: {len(found) - _MOST_PAIRS} more", f"none slower ({backend})"


def _store_lines(facts: StoreFacts) -> Iterator[Line]:
    if facts.failed:
        yield "failed at", facts.failed
    if facts.winners is not None:
        yield "create if absent", f"{facts.winners} of 8 at once had it"
    if facts.reads_what_it_wrote is not None:
        yield "read after write", "yes" if facts.reads_what_it_wrote else "no"
    if facts.put_s is not None and facts.get_s is not None:
        yield "small objects", f"{facts.put_s * 1e3:.1f} ms to put, {facts.get_s * 1e3:.1f} ms to get"
    if facts.write_bytes_per_s is not None and facts.read_bytes_per_s is not None:
        yield (
            "large objects",
            f"{_rate(facts.write_bytes_per_s)} to write, {_rate(facts.read_bytes_per_s)} to read",
        )
    if facts.free_bytes is not None:
        yield "free", f"{facts.free_bytes / 1e9:,.1f} GB"
    for answer in facts.verbs:
        refused = f", refused: {answer.refused}" if answer.refused else ""
        yield answer.verb, f"{answer.took_s * 1e3:.1f} ms{refused}"


def _forecast_lines(run: Forecast) -> Iterator[Line]:
    yield "checkpoint", f"{run.generation_bytes / 1e9:,.3f} GB"
    yield "in the store", f"{run.store_bytes / 1e9:,.3f} GB: at most {run.num_kept} at a time"
    if run.grows:
        yield "grows", f"by one {run.grows}"
    if run.local_bytes is not None:
        yield "on each node", f"{run.local_bytes / 1e9:,.3f} GB in {run.local_folder}"


def _finding_text(finding: Finding) -> str:
    remedy = f"\n    {finding.remedy}" if finding.remedy else ""
    return f"{finding.level:<8}{finding.subject}: {finding.found}{remedy}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.2f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:,.0f} MB/s"


def _memory(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.0f} MiB"


def _flops(rate: float) -> str:
    """A rate in TFLOP/s with three digits, which suits a CPU core and an accelerator."""
    return f"{rate / 1e12:.3g}"


def as_json(seen: Examination, findings: Sequence[Finding]) -> str:
    """All measurements as JSON, in base units. A node or link that failed has a text with the reason."""
    found = asdict(seen)
    if seen.forecast:
        found["forecast"]["store_bytes"] = seen.forecast.store_bytes
    found |= {
        "verdict": worst(findings),
        "exit_code": exit_code(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(found, indent=1) + "\n"
