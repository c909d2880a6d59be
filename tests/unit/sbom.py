"""Writes what a release consists of, as CycloneDX: ``python -m tests.unit.sbom FILE``, by `make release`.

It lists what Longhaul itself needs, as it is installed here, with versions, licenses and who needs whom. The
same environment gives the same bytes.
"""

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.unit.lock import normal

PRODUCT = "longhaul"
_MOST_LICENSE_CHARS = 100
_CLASSIFIER = "License :: OSI Approved :: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """``needs`` are normal names of requirements that no extra asks for. ``record`` is the digest of its list
    of files, each with a digest of its own.
    """

    name: str
    version: str
    license: str | None = None
    needs: tuple[str, ...] = ()
    record: str | None = None

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.')}"


def main(path: Path) -> None:
    packages = {package.name: package for package in map(_package, distributions())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sbom(packages), encoding="utf-8")
    print(f"{path}: {len(needed(packages))} packages", file=sys.stderr)


def sbom(packages: Mapping[str, Package]) -> str:
    """The document of the product and of all that it needs."""
    product = packages[PRODUCT]
    parts = needed(packages)
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**_component(product), "type": "application"}},
        "components": [_component(part) for part in parts],
        "dependencies": [
            {"ref": one.purl, "dependsOn": [packages[name].purl for name in _present(one, packages)]}
            for one in (product, *parts)
        ],
    }
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return (
        json.dumps({**body, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"}, indent=1)
        + "\n"
    )


def needed(packages: Mapping[str, Package]) -> list[Package]:
    """What the product needs, directly or through others, as far as it is installed; by name."""
    found: set[str] = set()
    waiting: list[str] = _present(packages[PRODUCT], packages)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _present(packages[name], packages)
    return [packages[name] for name in sorted(found - {PRODUCT})]


def _present(package: Package, packages: Mapping[str, Package]) -> list[str]:
    """Requirements of other systems and Pythons are not installed."""
    return sorted({name for name in package.needs if name in packages})


def _component(package: Package) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.license:
        found["licenses"] = [{"license": {"name": package.license}}]
    if package.record:
        found["properties"] = [{"name": "longhaul:sha256-of-RECORD", "value": package.record}]
    return found


def _package(found: Distribution) -> Package:
    record = found.read_text("RECORD")
    return Package(
        name=normal(found.metadata["Name"]),
        version=found.version,
        license=_license(found),
        needs=tuple(sorted(_needs(found.requires or ()))),
        record=hashlib.sha256(record.encode()).hexdigest() if record else None,
    )


def _needs(requirements: Iterable[str]) -> set[str]:
    return {
        normal(re.split(r"[^A-Za-z0-9._-]", one.strip(), maxsplit=1)[0])
        for one in requirements
        if "extra ==" not in one
    }


def _license(found: Distribution) -> str | None:
    """Its name, by the newest way to say it. A whole text is none."""
    by_classifier = [
        one.removeprefix(_CLASSIFIER)
        for one in found.metadata.get_all("Classifier") or ()
        if one.startswith(_CLASSIFIER)
    ]
    for name in (found.metadata.get("License-Expression"), *by_classifier, found.metadata.get("License")):
        if name and len(name) <= _MOST_LICENSE_CHARS and "\n" not in name:
            return name
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
