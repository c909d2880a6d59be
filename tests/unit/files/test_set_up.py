"""How an environment is made: what pip's configuration means to uv, and which versions are written down."""

import re
from pathlib import Path

import pytest

from cluster.set_up import SetUpError, as_uv_obeys, locked_file, pinned, set_up, settings, without_credentials
from tests.unit.lock import lock, normal

ROOT = Path(__file__).parents[3]
LOCKED = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "locked").glob("*.txt"))}
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


# Digests of files.


def locked(name: str) -> dict[str, list[str]]:
    """The digests by ``name==version``."""
    found: dict[str, list[str]] = {}
    for line in LOCKED[name].replace("\\\n", "").splitlines():
        if line and not line.startswith("#"):
            pin, *digests = line.split()
            found[pin] = digests
    return found


@pytest.mark.parametrize("name", ["product.txt", "development.txt"])
def test_each_locked_package_has_its_tested_version_and_digests(name: str) -> None:
    pins = set(re.findall(r"^\S+==\S+$", CONSTRAINTS, re.MULTILINE))
    assert len(locked(name)) > 80
    assert locked(name).keys() <= pins
    for digests in locked(name).values():
        assert digests
        assert [one for one in digests if not re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one)] == []
    assert "://" not in LOCKED[name]


def test_developers_get_all_that_is_pinned_and_users_part_of_it() -> None:
    """But torch, whose build belongs to the machine."""
    pins = {line.partition("==")[0] for line in CONSTRAINTS.splitlines() if "==" in line}
    assert {pin.partition("==")[0] for pin in locked("development.txt")} == pins - {"torch"}
    assert locked("product.txt").items() <= locked("development.txt").items()
    assert not any(pin.startswith("pytest==") for pin in locked("product.txt"))


@pytest.mark.parametrize(
    ("extras", "name"),
    [
        ("", "product.txt"),
        ("fp8", "product.txt"),
        ("test,check", "development.txt"),
        ("fp8,test", "development.txt"),
    ],
)
def test_the_locked_file_has_all_that_the_extras_need(extras: str, name: str) -> None:
    assert locked_file(ROOT, extras) == ROOT / "locked" / name


def test_without_its_file_nothing_is_installed_as_locked(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("torch==1\n", encoding="utf-8")
    with pytest.raises(SetUpError, match=r"product\.txt is not there; .* leave out --locked"):
        set_up(tmp_path / "environment", tmp_path, "", False, "pip", is_locked=True)
