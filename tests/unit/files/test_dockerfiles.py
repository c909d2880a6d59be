"""The images' recipes. Nothing here builds one; what the build itself checks is run with stand-ins."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.dockerfiles import Dockerfile, pins, problems

ROOT = Path(__file__).parents[3]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
FILES = {
    path.name: Dockerfile(path.read_text()) for path in sorted((ROOT / "cluster/docker").glob("Dockerfile.*"))
}
CUDA = "Dockerfile.cuda"


def changed(found: str, instead: str) -> list[str]:
    text = FILES[CUDA].text
    assert found in text
    return problems(Dockerfile(text.replace(found, instead)), CONSTRAINTS)


def test_there_is_one_for_each_vendor_and_one_for_the_head() -> None:
    assert set(FILES) == {"Dockerfile.cpu", "Dockerfile.cuda", "Dockerfile.rocm"}
    assert [file.arguments["TORCH_BUILD"] for file in FILES.values()] == ["any", "cuda", "rocm"]


@pytest.mark.parametrize("name", FILES)
def test_it_keeps_our_rules(name: str) -> None:
    assert problems(FILES[name], CONSTRAINTS) == []


def test_all_have_the_same_python_ray_and_steps() -> None:
    marker = "# What follows is the same in all three files"
    steps = {file.text.partition(marker)[2] for file in FILES.values()}
    assert len(steps) == 1
    assert steps != {""}


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.rocm"])
def test_a_base_that_names_its_python_has_the_one_that_is_asked_for(name: str) -> None:
    (base,) = FILES[name].all("FROM")
    (named,) = re.findall(r"(?:python:|py)(3\.\d+(?:\.\d+)?)", base)
    assert FILES[name].arguments["PYTHON_VERSION"].startswith(named)


@pytest.mark.parametrize("name", FILES)
def test_what_it_copies_exists(name: str) -> None:
    copied = [word for rest in FILES[name].all("COPY") for word in rest.split()[:-1]]
    assert "constraints.txt" in copied
    assert [word for word in copied if not (ROOT / word).exists()] == []


def test_it_is_built_under_the_names_that_the_cluster_asks_for() -> None:
    launcher = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    asked = {launcher["docker"]["image"]}
    asked |= {launcher["available_node_types"][name]["docker"]["worker_image"] for name in ("nvidia", "amd")}
    built = {re.findall(r"docker build .* -t (\S+) \.", file.text)[0] for file in FILES.values()}
    assert built == asked


@pytest.mark.parametrize(
    ("found", "instead", "says"),
    [
        (":2.13.0-cuda13.0-cudnn9-runtime", ":latest", "is not pinned"),
        (":2.13.0-cuda13.0-cudnn9-runtime", "", "is not pinned"),
        ("Not built here", "Built here", "does not say that it was not built"),
        ("COPY jobs jobs", "ADD https://example.org/x x", "uses ADD"),
        ("COPY jobs jobs", "COPY . .", "copies the whole folder"),
        ("COPY jobs jobs", "RUN curl example.org", "fetches by address"),
        (
            "COPY jobs jobs",
            "RUN python -m pip install --index-url x -c constraints.txt y",
            "fetches by address",
        ),
        ("COPY jobs jobs", "ENV AWS_SECRET_ACCESS_KEY=x", "looks like a secret"),
        ("COPY jobs jobs", "ARG RAY_AUTH_TOKEN", "looks like a secret"),
        ("COPY jobs jobs", "RUN pip install -c constraints.txt torch", "may replace the base's torch"),
        ("COPY jobs jobs", "RUN pip install -U -c constraints.txt ray", "may replace the base's torch"),
        ("COPY jobs jobs", "RUN pip install ray", "constraints.txt does not pin"),
        ("USER longhaul", "USER root", "ends as root"),
        ("ENV HOME=/home/longhaul", "", "no ENV HOME"),
        ("/etc/profile.d/longhaul.sh", "~/.bashrc", "loses its PATH in login shells"),
        ("    && rm -rf /var/lib/apt/lists/*", "    && true", "keeps apt's lists"),
        ("RAY_VERSION=2.60.0", "RAY_VERSION=2.59.0", "RAY_VERSION is 2.59.0, constraints.txt has 2.60.0"),
        ("TORCH_VERSION=2.13.0", "TORCH_VERSION=2.12.0", "TORCH_VERSION is 2.12.0"),
        ("PYTHON_VERSION=3.12.3", "PYTHON_VERSION=3.12", "PYTHON_VERSION is not exact"),
    ],
)
def test_each_rule_refuses_something(found: str, instead: str, says: str) -> None:
    assert any(says in problem for problem in changed(found, instead))


@pytest.mark.parametrize(
    ("wanted", "torch", "hip", "passes"),
    [
        ("cuda", "2.13.0+cu130", None, True),
        ("any", "2.13.0+cpu", None, True),
        ("rocm", "2.13.0+rocm7.2", "7.2", True),
        ("cuda", "2.13.0+rocm7.2", "7.2", False),
        ("rocm", "2.13.0", None, False),
        ("cuda", "2.12.1+cu130", None, False),
    ],
)
def test_the_build_stops_on_another_torch_than_the_cluster_needs(
    tmp_path: Path, wanted: str, torch: str, hip: str | None, passes: bool
) -> None:
    cuda = None if hip or "cpu" in torch else "13.0"
    (tmp_path / "ray.py").write_text(f"__version__ = {pins(CONSTRAINTS)['ray']!r}")
    (tmp_path / "torch.py").write_text(
        f"class version: hip = {hip!r}; cuda = {cuda!r}\n__version__ = {torch!r}"
    )
    (check,) = (run for run in FILES[CUDA].all("RUN") if run.startswith("python -c"))
    settings = {**FILES[CUDA].arguments, "PYTHON_VERSION": platform.python_version(), "TORCH_BUILD": wanted}

    done = subprocess.run(
        ["sh", "-c", check.replace("python", sys.executable, 1)],
        env={**settings, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode == 0) == passes, done.stderr
    assert ("choose another base" in done.stderr) != passes
