"""Finds versions that are not the ones Longhaul was tested with, on the driver and on nodes. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from cluster.probe.node_facts import NodeFacts
from jobs.doctor.examination import Examination, Finding

_DRIVER = "the driver"
_MOST = 5  # names that one finding lists


def tested_versions(seen: Examination) -> Iterator[Finding]:
    """One warning for each other version that is there, with who has it; else one line says what was tested.

    A local build (2.13.0+rocm10.0) counts as its version. What is not installed is another check's finding.
    """
    if not seen.tested:
        return
    others = _others(seen)
    for (package, version), who in others.items():
        yield Finding(
            level="warning",
            subject="versions",
            found=f"{package} {version} on {_some(who)} was not tested with Longhaul; "
            f"{package} {seen.tested[package]} was",
            remedy="take images with the tested version, or run `make test` there first",
        )
    if not others:
        told = ", ".join(f"{package} {version}" for package, version in seen.tested.items())
        yield Finding(level="ok", subject="versions", found=f"as tested: {told}")


def _others(seen: Examination) -> dict[tuple[str, str], list[str]]:
    others: dict[tuple[str, str], list[str]] = {}
    for who, versions in _known(seen):
        for package, tested in seen.tested.items():
            version = versions.get(package)
            if version and version.partition("+")[0] != tested:
                others.setdefault((package, version), []).append(who)
    return others


def _known(seen: Examination) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    yield _DRIVER, seen.own_versions
    for answer in seen.answers:
        if isinstance(answer.facts, NodeFacts):
            yield f"{answer.asked.group}: {answer.asked.name}", answer.facts.versions


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
