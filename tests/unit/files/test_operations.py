"""``docs/operations.md``: its commands and files are ours, and it explains everything that can be said."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml

from cluster import promised_vs_live
from jobs.cli.arguments import longhaul_parser
from jobs.training.task.measurement import Status
from reporting.recording import attempts

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs/operations.md").read_text()
SHELL = re.findall(r"^ *```sh\n(.*?)^ *```", RUNBOOK, flags=re.MULTILINE | re.DOTALL)
OURS = [
    line.partition("#")[0].strip()
    for line in [*"\n".join(SHELL).splitlines(), *re.findall(r"`(longhaul [^`]+ [^`]+)`", RUNBOOK)]
    if re.match(r" *longhaul ", line)
]

# As its source names them: they have no list of their own.
CHECKS = tuple(
    re.findall(r'(?:name=|_CAPPED = )"([^"]+)"', (ROOT / "reporting/analysis/checks.py").read_text())
)


def section(title: str) -> str:
    found = re.search(rf"^#+ {title}$(.*?)(?=^##|\Z)", RUNBOOK, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


@pytest.mark.parametrize("command", sorted(set(OURS)))
def test_its_commands_are_ones_that_we_have(command: str) -> None:
    words = shlex.split(command)[1:]
    assert longhaul_parser().parse_args(words).command == words[0]


def test_it_shows_each_of_the_commands_that_an_operator_needs() -> None:
    shown = {shlex.split(command)[1] for command in OURS}
    assert {"sweep", "status", "report", "cluster", "doctor"} <= shown
    assert "python jobs/sweep.py" in RUNBOOK
    assert "python jobs/train.py" in RUNBOOK


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:cluster|jobs|docs)/[\w./-]+\w", RUNBOOK))))
def test_the_files_that_it_names_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_pages_that_it_links_exist() -> None:
    pages = re.findall(r"\]\(([^)#:]+)\)", RUNBOOK)
    assert pages
    assert [page for page in pages if not (ROOT / "docs" / page).exists()] == []


def test_its_own_links_lead_somewhere() -> None:
    titles = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", RUNBOOK, flags=re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK))
    assert links
    assert links <= titles


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("How a cell ended", get_args(Status)),
        ("What `longhaul cluster show` says of nodes", get_args(promised_vs_live.NodeFindingKind)),
        ("What happened to a long run", get_args(attempts.IncidentKind)),
        ("What a report checks", CHECKS),
    ],
)
def test_everything_that_can_be_said_is_explained(title: str, words: tuple[str, ...]) -> None:
    assert words
    text = section(title)
    assert [word for word in words if f"`{word}`" not in text] == []


def test_its_ports_are_those_that_the_cluster_listens_on() -> None:
    launcher = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    commands = " ".join(launcher["head_start_ray_commands"] + launcher["worker_start_ray_commands"])
    ports = set(re.findall(r"port=(\d+)", commands))
    assert ports == {"6379", "8076", "8077"}
    assert ports <= set(re.findall(r"\d+", section("Who may come near")))


def test_it_says_what_has_not_run() -> None:
    assert "never run" in RUNBOOK
    assert "not built" in RUNBOOK
    assert "No code here has driven several GPUs of either vendor yet" in RUNBOOK


def test_every_right_of_the_store_is_explained() -> None:
    policy = (ROOT / "cluster/store_policies/trainer.json").read_text()
    text = section("What the store must allow")
    assert [right for right in re.findall(r'"(s3:\w+)"', policy) if f"`{right}`" not in text] == []
