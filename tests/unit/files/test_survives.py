"""Each fault of docs/survives.md's tables is shown by a test that is there."""

import pytest

from tests.unit.files.test_attacks import ROOT, function_of

HEAD = "| fault | what is done | cost | test |"


def rows() -> list[list[str]]:
    lines = (ROOT / "docs/survives.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and line != HEAD]
    return [[cell.strip("` ") for cell in line.strip("|").split(" | ")] for line in table]


@pytest.mark.parametrize("test", [row[-1] for row in rows()])
def test_the_test_of_each_fault_is_there(test: str) -> None:
    assert function_of(test) is not None, f"there is no {test}"


def test_each_fault_stands_there_once_with_what_is_done_and_what_it_costs() -> None:
    faults = [row[0] for row in rows()]
    assert len(faults) == len(set(faults)) >= 40
    assert all(len(row) == 4 and all(row) for row in rows())
