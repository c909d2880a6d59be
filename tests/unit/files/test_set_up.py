"""How an environment is made: what pip's configuration means to uv, and which versions are written down."""

import re
from pathlib import Path

import pytest

from cluster.set_up import as_uv_obeys, pinned, settings, without_credentials
from tests.unit.lock import lock, normal

ROOT = Path(__file__).parents[3]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_uv_looks_where_pip_is_told_to_look() -> None:
    listed = """:env:.find-links='/a /b'
global.index-url='https://mirror.example/simple'
global.extra-index-url='file:///c\\nfile:///d'
install.no-index='1'
download.index-url='https://other.example'
"""
    assert as_uv_obeys(settings(listed)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/a,/b",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "file:///c file:///d",
    }


@pytest.mark.parametrize("order", [1, -1])
def test_a_variable_wins_over_pips_files_in_any_order(order: int) -> None:
    lines = ["global.index-url='https://file.example'", ":env:.index-url='https://variable.example'"][::order]
    assert settings("\n".join(lines)) == {"index-url": ["https://variable.example"]}


def test_what_uv_does_not_know_is_left_to_pip() -> None:
    assert as_uv_obeys(settings("global.client-cert='/my.pem'\n")) is None
    assert as_uv_obeys(settings("global.no-color='1'\n:env:.disable-pip-version-check='1'\n")) is not None


def test_what_an_installer_printed_is_shown_without_credentials() -> None:
    shown = without_credentials("Looking in indexes: https://me:secret@mirror.example/simple")
    assert shown == "Looking in indexes: https://mirror.example/simple"


def test_the_lock_has_a_version_of_all_that_is_asked_for() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = set(re.findall(r'"([A-Za-z0-9-]+)(?:\[[a-z,]+\])?[><=]=', project)) - {"setuptools"}
    assert len(asked) > 20
    assert [name for name in sorted(asked) if pinned(CONSTRAINTS, normal(name)) is None] == []


def test_the_lock_leaves_out_what_torch_alone_brings() -> None:
    installed = {
        "torch": "2.13.0+cpu",
        "sympy": "1.14",
        "mpmath": "1.3",
        "jinja2": "3.1",
        "ray": "2.60.0",
        "longhaul": "0",
    }
    needs = {
        "torch": ["sympy>=1", "jinja2"],
        "sympy": ["mpmath<1.4"],
        "ray": ["jinja2>=3; python_version>'3'", "mpmath; extra == 'all'"],
        "longhaul": ["torch==2.13.0", "ray"],
    }
    assert lock(installed, needs).splitlines()[1:] == ["jinja2==3.1", "ray==2.60.0", "torch==2.13.0"]
