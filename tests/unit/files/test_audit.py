"""``make audit`` tells an answer from none; pip-audit ends with the same code for holes and for silence."""

import json
from pathlib import Path

import pytest

from tests.unit import audit
from tests.unit.audit import verdict

ROOT = Path(__file__).parents[3]


def answer(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


WELL: dict[str, object] = {"name": "ray", "version": "2.60.0", "vulns": []}


def test_without_a_hole_all_is_well() -> None:
    assert verdict(answer(WELL), "") == (["audit: no known hole in 1 packages"], 0)


def test_a_hole_is_one_line_with_what_mends_it() -> None:
    hole = {"id": "PYSEC-1", "fix_versions": ["2.61.0"]}
    lines, code = verdict(answer(WELL, {**WELL, "vulns": [hole]}), "Found 1 known vulnerability")
    assert (lines, code) == (["audit: ray 2.60.0: PYSEC-1, mended in 2.61.0"], 1)


@pytest.mark.parametrize("printed", ["", "Found", "[]", "null", "{}", '{"dependencies": 3}'])
def test_without_an_answer_nothing_is_called_well(printed: str) -> None:
    lines, code = verdict(printed, "trace\nERROR: Name or service not known\n")
    assert code == 3
    (line,) = lines
    assert line.startswith("audit: nothing was looked up: the database can't be reached")
    assert "Name or service not known" in line


def test_what_was_skipped_is_named_and_is_no_answer() -> None:
    skipped = {"name": "torch", "skip_reason": "not found"}
    lines, code = verdict(answer(WELL, skipped), "")
    assert lines[0] == "audit: torch was skipped: not found"
    assert code == 3


@pytest.mark.parametrize("num_packages", [0, 1, 3])
def test_where_every_package_was_skipped_nothing_is_called_well(num_packages: int) -> None:
    """As pip-audit does behind a wall that answers "not found": it ends with 0 and finds nothing."""
    packages = [{"name": f"p{at}", "skip_reason": "not found"} for at in range(num_packages)]
    lines, code = verdict(answer(*packages), "No known vulnerabilities found")
    assert code == 3
    assert lines == [
        "audit: nothing was looked up: the database can't be reached, or knows none of "
        f"{num_packages} packages"
    ]


def test_without_pip_audit_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda _name: None)
    assert audit.main() == 3
    assert "nothing was looked up: pip-audit is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "in_a_check"), [(0, 0), (1, 1), (3, 0)])
def test_a_check_fails_for_a_hole_and_not_for_want_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, code: int, in_a_check: int
) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda _name: "there")
    monkeypatch.setattr(audit, "_ask", lambda *_: ("", ""))
    monkeypatch.setattr(audit, "verdict", lambda *_: (["audit: x"], code))
    assert audit.main([]) == code
    assert audit.main(["--if-at-hand"]) == in_a_check


def test_make_check_asks_where_an_answer_is_at_hand() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (check,) = [part for part in makefile.split("\n\n") if part.startswith("check: ")]
    assert "$(BIN)/python -m tests.unit.audit --if-at-hand" in check
    assert "\naudit: setup" in makefile
