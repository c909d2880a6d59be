"""What doctor says of versions that nobody tried Longhaul with."""

from dataclasses import replace

from cluster.probe.versions import SUPPORTED
from jobs.doctor.node_checks import judge
from tests.unit.examinations import A1, B1, HEALTHY, OWN, amd, answer, nvidia

TESTED = {"torch": "2.13.0", "ray": "2.60.0", "deepspeed": "0.19.8"}


def test_a_version_that_was_not_tested_is_a_warning_with_all_who_have_it() -> None:
    other = {"torch": "2.14.1+cu130"}
    answers = (
        answer(A1, nvidia(versions={**nvidia().versions, **other})),
        answer(B1, amd(versions={**amd().versions, "torch": "2.14.1+rocm10.1"})),
    )
    seen = replace(HEALTHY, tested=TESTED, own_versions=OWN | {"torch": "2.14.1+cu130"}, answers=answers)
    assert [(one.level, one.found) for one in judge(seen) if one.subject == "versions"] == [
        (
            "warning",
            "torch 2.14.1+cu130 on the driver, nvidia: gpu-1 was not tested with Longhaul; torch 2.13.0 was",
        ),
        ("warning", "torch 2.14.1+rocm10.1 on amd: gpu-9 was not tested with Longhaul; torch 2.13.0 was"),
    ]


def test_what_was_tested_is_said_where_it_is_there_whatever_the_build() -> None:
    (said,) = [one for one in judge(replace(HEALTHY, tested=TESTED)) if one.subject == "versions"]
    assert (said.level, said.found) == ("ok", "as tested: torch 2.13.0, ray 2.60.0, deepspeed 0.19.8")


def test_nothing_is_said_where_nobody_knows_what_was_tested() -> None:
    assert [one for one in judge(HEALTHY) if one.subject == "versions"] == []


def said_of(**own_versions: str) -> list[tuple[str, str]]:
    """What is said of versions if the driver has these, and the nodes what was tested."""
    own = {**OWN, **own_versions}
    seen = replace(HEALTHY, tested=TESTED, supported=SUPPORTED, own_versions=own)
    return [(one.level, one.found) for one in judge(seen) if one.subject == "versions"]


def test_a_version_below_its_range_fails_and_the_range_is_said() -> None:
    assert said_of(pyarrow="1.0.1") == [
        (
            "failed",
            f"pyarrow 1.0.1 on the driver is older than what Longhaul works with: {SUPPORTED['pyarrow']}; "
            "26.0.1 was tested",
        )
    ]


def test_a_version_above_its_range_is_a_warning() -> None:
    assert said_of(torch="2.14.1+cu130") == [
        (
            "warning",
            "torch 2.14.1+cu130 on the driver is newer than what Longhaul works with: "
            "from 2.13 to below 2.14; 2.13.0 was tested",
        )
    ]


def test_within_its_range_only_a_foremost_version_that_was_not_tested_is_named() -> None:
    assert said_of(numpy="2.3.5", torch="2.13.1") == [
        ("warning", "torch 2.13.1 on the driver was not tested with Longhaul; torch 2.13.0 was")
    ]
