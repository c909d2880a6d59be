"""The list of what a release consists of: complete, exact, and the same from the same environment."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import strict_json
from tests.unit.sbom import Package, main, needed, sbom

PACKAGES = {
    one.name: one
    for one in (
        Package(name="longhaul", version="0.1.0", needs=("ray", "torch")),
        Package(
            name="ray", version="2.60.0", license="Apache-2.0", needs=("click", "windows-only"), record="ab"
        ),
        Package(name="torch", version="2.13.0+cpu", needs=("click",)),
        Package(name="click", version="8.0", needs=("longhaul",)),
        Package(name="pytest", version="9.0", needs=("click",)),
    )
}


def test_it_holds_what_the_product_needs_and_nothing_else() -> None:
    assert [one.name for one in needed(PACKAGES)] == ["click", "ray", "torch"]


def test_it_is_cyclonedx_with_versions_licenses_and_dependencies() -> None:
    found = strict_json(sbom(PACKAGES))
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/longhaul@0.1.0"
    by_name = {one["name"]: one for one in found["components"]}
    assert by_name["ray"]["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    assert by_name["ray"]["properties"][0]["value"] == "ab"
    assert by_name["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    depends = {one["ref"]: one["dependsOn"] for one in found["dependencies"]}
    assert depends["pkg:pypi/ray@2.60.0"] == ["pkg:pypi/click@8.0"]
    refs = {one["bom-ref"] for one in found["components"]} | {found["metadata"]["component"]["bom-ref"]}
    assert depends.keys() == refs
    assert {ref for refs in depends.values() for ref in refs} <= refs


def test_the_same_packages_give_the_same_bytes_and_others_another_number() -> None:
    assert sbom(PACKAGES) == sbom(dict(reversed(PACKAGES.items())))
    other = {**PACKAGES, "click": Package(name="click", version="8.1")}
    numbers = {strict_json(sbom(packages))["serialNumber"] for packages in (PACKAGES, other)}
    assert len(numbers) == 2


def test_of_this_environment_it_names_what_was_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path / "build/longhaul.cdx.json")
    found = strict_json((tmp_path / "build/longhaul.cdx.json").read_text())
    names = {one["name"] for one in found["components"]}
    # `make test-versions` has no torch.
    asked = {"ray", "torch", "pydantic", "pyarrow"}
    assert names & asked == {name for name in asked if find_spec(name)}
    assert "pytest" not in names and "longhaul" not in names
    assert f"{len(names)} packages" in capsys.readouterr().err
