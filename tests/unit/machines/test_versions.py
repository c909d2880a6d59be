"""The ranges of versions, in pyproject.toml and in the code, and what is said of versions outside of them."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.probe.versions import FOREMOST, SUPPORTED, too_old
from cluster.set_up import SetUpError, is_before, is_within, pinned, release, requirement
from jobs.cli import __main__ as command_line
from jobs.cli import old_libraries
from jobs.commandline.exit_codes import EXIT_OK, EXIT_USAGE
from tests.unit.lock import normal
from tests.unit.versions import SURFACES, name_of, requirements

ROOT = Path(__file__).parents[3]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
ASKED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


def test_the_code_knows_the_ranges_of_the_project() -> None:
    asked = {re.split(r"[\[>]", one)[0] for one in ASKED}
    assert asked == SUPPORTED.keys()
    for package, supported in SUPPORTED.items():
        assert requirement(ROOT, package) == f">={supported.oldest},<{supported.below}"


def test_the_page_of_set_up_has_the_same_ranges() -> None:
    page = (ROOT / "docs/setup.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| (from [\d.]+ to below [\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert rows == [(name, str(one), one.tested) for name, one in SUPPORTED.items()]


@pytest.mark.parametrize("package", SUPPORTED)
def test_what_was_tested_is_pinned_and_lies_in_its_range(package: str) -> None:
    supported = SUPPORTED[package]
    assert pinned(CONSTRAINTS, normal(package)) == supported.tested
    assert supported.place_of(supported.tested) == "inside"


def test_the_libraries_that_decide_most_have_a_range() -> None:
    assert FOREMOST == ("torch", "ray", "deepspeed", "pyarrow")
    assert {*FOREMOST} <= SUPPORTED.keys()


@pytest.mark.parametrize(
    ("version", "is_in"),
    [
        ("2.13", True),
        ("2.13.0", True),
        ("2.13.1+rocm10.0", True),
        ("2.13.0.post1", True),
        ("2.12.9+cu130", False),
        ("2.13.0a0+ab12cd.nv26.11", False),
        ("2.13.0rc1", False),
        ("2.13.0.dev20261101", False),
        ("2.14.0", False),
        ("2.14.0a0", False),
        ("3", False),
    ],
)
def test_a_version_lies_in_a_range_or_not_whatever_its_build(version: str, is_in: bool) -> None:
    assert is_within(version, ">=2.13,<2.14") is is_in
    assert is_within(version, "")


def test_versions_are_compared_as_numbers() -> None:
    assert is_before("2.9", "2.10") and not is_before("2.10", "2.9")
    assert release("2.13.0+cpu") == release("2.13") == (2, 13)


def test_a_range_that_set_up_does_not_understand_is_one_line() -> None:
    with pytest.raises(SetUpError, match="expected a range"):
        is_within("2.13", "~=2.13")


def test_each_library_that_is_installed_in_its_oldest_version_is_touched_by_some_test() -> None:
    own = {name_of(one) for one in requirements() if "==" not in one}
    assert {name.lower() for name in own} == {name.lower() for name in SURFACES}
    assert [test for tests in SURFACES.values() for test in tests if not (ROOT / test).is_file()] == []


# Before a start.


def only(package: str, version: str) -> Callable[[str], str | None]:
    return {package: version}.get


def test_a_library_below_the_oldest_that_works_is_one_line() -> None:
    oldest = SUPPORTED["ray"].oldest
    (line,) = too_old(only("ray", "2.9.3"))
    assert line == (
        f"ray 2.9.3 is too old: Longhaul works with ray from {oldest} to below 2.61, "
        "and was tested with 2.60.0"
    )


@pytest.mark.parametrize("version", ["2.13", "2.13.0+rocm10.0", "2.14.1", "99"])
def test_what_is_as_old_as_may_be_or_newer_starts(version: str) -> None:
    assert list(too_old(only("torch", version))) == []


def test_a_command_that_needs_the_library_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(old_libraries, "version_of", only("pyarrow", "1.0"))
    assert command_line.main(["runs", "--store", "nowhere"]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("longhaul runs: pyarrow 1.0 is too old: ")
    assert command_line.main(["explain", "oom"]) == EXIT_OK


# `make test-versions`.


def test_its_environments_have_the_projects_ranges_without_torch_and_the_tests_tools() -> None:
    needs = requirements()
    assert {name_of(one) for one in needs} >= SUPPORTED.keys() - {"torch", "deepspeed"}
    assert not {"torch", "deepspeed"} & {name_of(one) for one in needs}
    assert f"pyarrow>={SUPPORTED['pyarrow'].oldest},<27" in needs
    assert [one for one in needs if one.endswith("==None")] == []
