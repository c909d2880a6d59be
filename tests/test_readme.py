"""The documentation tells the truth: its blocks run, its links lead somewhere, and it stays easy to read.

Blocks of the README and of ``docs/`` that are marked ``sh test`` or ``python test`` run exactly as they are
written, page by page, in a folder that has the checkout's ``jobs`` and ``cluster`` and nothing else of it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from checkpointing.stores.local import LocalStore
from tests.unit.builders import measurement, record, run_of, sweep

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SMOKE = ROOT / "jobs/specs/sweeps/smoke.yaml"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, CONTRIBUTING, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *DOCS]
COMMANDS = re.findall(r"^ {4}([a-z]+)", (ROOT / "tests/golden/help_longhaul.txt").read_text(), re.MULTILINE)
OUTLINE = ("What it is for", "Example", "Keys|Flags", "Exit codes", "What can go wrong")
# These are about results and measure none themselves.
BEGIN_WITH_RESULTS = ("report", "pull", "compare")
# Each of their commands runs on its own page, in `test_token_runs` or in `test_export`.
SLOW = ("quickstarts", "first-day")
MOST_README_LINES = 150
MOST_WORDS = 80
FIRST_SCREEN = 20  # lines
DEADLINE_S = 900

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks_to_run(page: Path) -> list[tuple[str, str]]:
    """Language and text, in order."""
    return re.findall(r"^```(sh|python) test\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    """Neither blocks nor spans; as many lines as before."""
    text = re.sub(r"^ *```.*?^ *```", _empty_lines, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "code", text)


def _empty_lines(block: re.Match[str]) -> str:
    return "\n" * block[0].count("\n")


def dead_links(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    return [link for link in links if not re.match("https?://", link) and not _leads_somewhere(page, link)]


def _leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings; equal ones are numbered."""
    found: dict[str, int] = {}
    for title in headings(page):
        plain = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        found[plain] = found.get(plain, 0) + 1
    numbered = {f"{plain}-{number}" for plain, count in found.items() for number in range(1, count)}
    return {*found, *numbered}


def headings(page: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*\S)", text, flags=re.MULTILINE)


def long_paragraphs(page: Path) -> list[str]:
    """The beginnings of those above ``MOST_WORDS``; headings, tables, lists and code are none."""
    return [text[:60] for text in _paragraphs(page.read_text()) if len(text.split()) > MOST_WORDS]


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*without_code(text).splitlines(), ""]:
        # What is indented belongs to a list's item.
        if re.match(r"\S", line) and not re.match(r"#|\||[*-] |\d+\. ", line):
            lines.append(line)
        elif lines:
            yield " ".join(lines)
            lines = []


def missing_from_outline(page: Path) -> list[str]:
    """What of ``OUTLINE`` is no heading of the page; all of it where the order is another one."""
    titles = [wanted for title in headings(page) for wanted in OUTLINE if re.fullmatch(wanted, title)]
    return [
        wanted for wanted in OUTLINE if wanted not in titles or titles != sorted(titles, key=OUTLINE.index)
    ]


def not_in_index(index: Path) -> list[str]:
    linked = re.findall(r"^\* \[[^]]+\]\(([^)]+)\):", index.read_text(), flags=re.MULTILINE)
    return [page.name for page in sorted(index.parent.glob("*.md")) if page.name not in (*linked, index.name)]


# What runs.


def _to_run(page: Path) -> object:
    """A page's test. Of the slow ones each command runs in others by default: see CONTRIBUTING."""
    return pytest.param(page, marks=pytest.mark.soak) if page.stem in SLOW else page


@pytest.mark.parametrize(
    "page", [_to_run(page) for page in PAGES if blocks_to_run(page)], ids=lambda page: page.stem
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for name in ("jobs", "cluster", "cluster.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    if page.stem in BEGIN_WITH_RESULTS:
        _put_results(tmp_path / "results")
    for language, block in blocks_to_run(page):
        shell = ["bash", "-ec", block]
        done = _run(shell if language == "sh" else [sys.executable, "-c", block], tmp_path)

        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        assert language == "sh" or page != README or "ddp" in done.stdout


def test_the_pages_that_show_a_small_example_run_it() -> None:
    tested = {page.stem for page in PAGES if blocks_to_run(page)}
    assert {"README", "sweep", "report", "pull", "compare", "import", "pack"} <= tested


def _put_results(folder: Path) -> None:
    """The finished sweep ``trial`` of two cells, five runs each."""
    store = LocalStore(folder)
    for strategy, repeat in product(("ddp", "fsdp"), range(1, 6)):
        spec = sweep(axes={"strategy": [strategy]}, repeats=5)
        run = run_of(spec, repeat)
        outcome = measurement(run.run_id, step_s=0.1 + 0.0001 * repeat)
        store.put(f"sweeps/trial/runs/{run.name}/result.json", record(spec, run, outcome).to_json())


def test_make_sweep_prints_the_table_and_writes_the_report(tmp_path: Path) -> None:
    """Of a part of the smoke sweep."""
    part = yaml.safe_load(SMOKE.read_text(encoding="utf-8"))
    part["axes"] |= {"strategy": ["ddp"], "world_size": [1]}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(part), encoding="utf-8")
    _sweep_by_make(tmp_path / "results", "2/2", ("ddp",), 1, f"SPEC={tmp_path}/part.yaml")


@pytest.mark.soak
def test_make_sweep_runs_the_whole_smoke_sweep(tmp_path: Path) -> None:
    _sweep_by_make(tmp_path, "16/16", ("ddp", "fsdp", "zero2", "zero3"), 2)


def _sweep_by_make(store: Path, runs: str, strategies: tuple[str, ...], num_sizes: int, *says: str) -> None:
    environment = _environment_folder()
    # However old it is: else `make` would install this checkout into it while others use it.
    keep = f"--old-file={environment / '.longhaul-ready'}"
    done = _run(["make", keep, "sweep", f"VENV={environment}", f"STORE={store}", *says], ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{runs} runs" in done.stdout
    for strategy in strategies:
        assert len(re.findall(rf"^{strategy} .* ok$", done.stdout, flags=re.MULTILINE)) == num_sizes
    assert f"report: {store}/reports/smoke" in done.stdout
    assert (store / "reports/smoke/index.html").stat().st_size < 5e6


def _environment_folder() -> Path:
    """The environment that runs this test, so that `make sweep` need not make another."""
    folder = Path(sys.prefix)
    assert (folder / ".longhaul-ready").exists(), f"{folder} was not made by `make setup`"
    return folder


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


# What is said.


def test_the_spec_that_the_readme_shows_is_the_smoke_sweep() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    smoke = yaml.safe_load(SMOKE.read_text(encoding="utf-8"))

    assert yaml.safe_load(shown).items() <= smoke.items()


def test_every_verb_of_make_is_listed_by_make_and_explained() -> None:
    verbs = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    listed = _run(["make"], ROOT).stdout

    assert {"setup", "sweep", "mixed", "test", "check", "bench", "soak"} <= {*verbs}
    assert [verb for verb in verbs if f"make {verb} " not in listed] == []
    explained = CONTRIBUTING.read_text()
    assert [verb for verb in verbs if verb != "help" and f"| `make {verb}` |" not in explained] == []


def test_every_folder_of_the_rooms_is_explained() -> None:
    rooms = ("cluster", "checkpointing", "reporting", "jobs")
    files = (path for room in rooms for path in (ROOT / room).rglob("*.*") if path.suffix != ".pyc")
    folders = {path.parent.relative_to(ROOT).as_posix() for path in files if path.is_file()}
    explained = re.findall(r"^\| `([\w/]+)/` \| [^|?]+ \|$", CONTRIBUTING.read_text(), flags=re.MULTILINE)

    assert {*explained} == {re.sub("^jobs/specs/.*", "jobs/specs", folder) for folder in folders}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_README_LINES


def test_the_first_screen_of_the_readme_says_which_gpus_have_run_it() -> None:
    assert "Of GPUs it has met one H200" in "\n".join(README.read_text().splitlines()[:FIRST_SCREEN])


@by_name
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", [README, CONTRIBUTING, *DOCS], ids=lambda page: page.stem)
def test_no_paragraph_is_long(page: Path) -> None:
    assert long_paragraphs(page) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_each_command_has_the_same_outline(command: str) -> None:
    assert missing_from_outline(ROOT / f"docs/{command}.md") == []


def test_every_page_is_in_the_index() -> None:
    assert {"sweep", "train", "report"} <= {*COMMANDS}
    assert not_in_index(ROOT / "docs/index.md") == []


# Each rule, seen red.


@pytest.mark.parametrize(
    ("rule", "text", "problems"),
    [
        (dead_links, "[a](gone.md)", ["gone.md"]),
        (dead_links, "# Here\n[a](#there)", ["#there"]),
        (dead_links, "# It's `here`\n[a](#its-here) `[b](gone.md)` [c](https://x.y)\n", []),
        (dead_links, "```sh\n# Here\n```\n[a](#here)", ["#here"]),
        (dead_links, "# Here\n# Here\n[a](#here-1)\n[b](#here-2)", ["#here-2"]),
        (dead_links, "![a](images/gone.png)", ["images/gone.png"]),
        (long_paragraphs, "word " * 81, ["word " * 12]),
        (long_paragraphs, "word\n" * 81, ["word " * 12]),
        (long_paragraphs, "word " * 80 + "\n\n" + "word " * 80 + "\n* " + "word " * 81, []),
        (long_paragraphs, "| " + "word " * 81 + "|\n\n```\n" + "word " * 81 + "\n```\n", []),
        (
            missing_from_outline,
            "## What it is for\n## Example\n## Keys\n## Exit codes\n",
            ["What can go wrong"],
        ),
        (missing_from_outline, "".join(f"## {title}\n" for title in reversed(OUTLINE)), list(OUTLINE)),
        (not_in_index, "* [other](other.md): it", ["page.md"]),
        (not_in_index, "see [page](page.md)", ["page.md"]),
    ],
)
def test_what_is_wrong_with_a_page_is_seen(
    rule: Callable[[Path], list[str]], text: str, problems: list[str], tmp_path: Path
) -> None:
    (tmp_path / "page.md").touch()
    page = tmp_path / ("index.md" if rule is not_in_index else "page.md")
    page.write_text(text)

    assert rule(page) == problems
