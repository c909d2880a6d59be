"""Finds versions that Longhaul does not work with or was not tested with, on driver and nodes. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from cluster.probe.node_facts import NodeFacts
from cluster.probe.versions import Supported
from jobs.doctor.examination import Examination, Finding

_DRIVER = "the driver"
_MOST = 5  # names that one finding lists


def tested_versions(seen: Examination) -> Iterator[Finding]:
    """One finding for each version outside of its range, and for each foremost one that was not tested, with
    who has it; else one line says what was tested.

    A local build (2.13.0+rocm10.0) counts as its version. What is not installed is another check's finding.
    """
    judged = (_judge(seen, *what, _some(who)) for what, who in _there(seen).items())
    findings = [finding for finding in judged if finding]
    yield from findings
    if seen.tested and not findings:
        told = ", ".join(f"{package} {version}" for package, version in seen.tested.items())
        yield Finding(level="ok", subject="versions", found=f"as tested: {told}")


def _judge(seen: Examination, package: str, version: str, who: str) -> Finding | None:
    supported = seen.supported.get(package)
    if supported and supported.place_of(version) != "inside":
        return _outside(package, version, supported, who)
    if package in seen.tested and version.partition("+")[0] != seen.tested[package]:
        return Finding(
            level="warning",
            subject="versions",
            found=f"{package} {version} on {who} was not tested with Longhaul; "
            f"{package} {seen.tested[package]} was",
            remedy="take images with the tested version, or run `make test` there first",
        )
    return None


def _outside(package: str, version: str, supported: Supported, who: str) -> Finding:
    is_older = supported.place_of(version) == "older"
    return Finding(
        level="failed" if is_older else "warning",
        subject="versions",
        found=f"{package} {version} on {who} is {supported.place_of(version)} than what Longhaul works with: "
        f"{supported}; {supported.tested} was tested",
        remedy=f"install {package} {supported}" + ("" if is_older else ", or run `make test` there first"),
    )


def _there(seen: Examination) -> dict[tuple[str, str], list[str]]:
    """Who has which version of what is tested or has a range."""
    there: dict[tuple[str, str], list[str]] = {}
    for who, versions in _known(seen):
        for package in {**seen.tested, **seen.supported}:
            if version := versions.get(package):
                there.setdefault((package, version), []).append(who)
    return there


def _known(seen: Examination) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    yield _DRIVER, seen.own_versions
    for answer in seen.answers:
        if isinstance(answer.facts, NodeFacts):
            yield f"{answer.asked.group}: {answer.asked.name}", answer.facts.versions


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
