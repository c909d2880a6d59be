"""Each attack of docs/security.md's table is carried out by a test that is there, and that CI runs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAD = "| attack | what stops it | test |"


def rows() -> list[tuple[str, str, str]]:
    lines = (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()
    table = lines[lines.index(HEAD) + 2 :]
    end = next(at for at, line in enumerate(table) if not line.startswith("|"))
    cells = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table[:end])
    return [(attack, stops, test.strip("` ")) for attack, stops, test in cells]


def function_of(test: str) -> ast.FunctionDef | None:
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file():
        return None
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return next((one for one in found if isinstance(one, ast.FunctionDef) and one.name == name), None)


@pytest.mark.parametrize("test", [test for _, _, test in rows()])
def test_the_test_of_each_attack_is_there_and_runs_in_ci(test: str) -> None:
    function = function_of(test)
    assert function is not None, f"there is no {test}"
    assert "soak" not in " ".join(map(ast.unparse, function.decorator_list))


def test_each_attack_stands_there_once_with_what_stops_it() -> None:
    attacks = [attack for attack, _, _ in rows()]
    assert len(attacks) == len(set(attacks)) >= 20
    assert all(attack and stops for attack, stops, _ in rows())


def test_a_test_that_is_gone_would_be_noticed() -> None:
    assert function_of("unit/files/test_attacks.py::test_nowhere") is None
    assert function_of("unit/files/test_nowhere.py::test_a") is None
