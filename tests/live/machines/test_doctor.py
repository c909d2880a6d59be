"""`longhaul doctor` as a user runs it: on this machine, on real Ray nodes, and where nobody answers."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpointing.stores.local import LocalStore
from cluster.cluster_file import read_cluster
from cluster.local_ray.simulated import MixedCluster, mixed_cluster
from reporting.results.device_rates import read_machines
from tests.live.command_line import files, run

DOCTOR = [sys.executable, "-m", "jobs.cli", "doctor"]
USABLE = (0, 3)
CLUSTER = """
max_workers: 3
available_node_types:
  head: {resources: {CPU: 0}}
  green:
    max_workers: 2
    resources: {CPU: 1, GPU: 2}
    labels: {longhaul.group: green, longhaul.vendor: nvidia, longhaul.simulated: "true"}
  red:
    max_workers: 1
    resources: {CPU: 1, GPU: 1}
    labels: {longhaul.group: red, longhaul.vendor: amd, longhaul.simulated: "true"}
head_node_type: head
"""
RUN = """
name: there
model: llama-tiny
steps: 100
world_size: 2
group: green
checkpoint: {every_steps: 10, local: {dir: FOLDER}}
"""


@pytest.mark.soak
def test_on_this_machine_every_number_is_there_and_reports_get_the_rates(tmp_path: Path) -> None:
    done = run([*DOCTOR, "--json", "--store", str(tmp_path)])

    assert done.returncode in USABLE, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    (answer,) = found["answers"]
    facts = answer["facts"]
    assert_measured(facts)
    assert facts["versions"].keys() == {"python", "ray", "torch", "deepspeed"}
    assert all(facts["versions"].values())
    assert found["store"]["winners"] == 1
    assert all(
        found["store"][name] > 0 for name in ("put_s", "get_s", "write_bytes_per_s", "read_bytes_per_s")
    )
    if facts["num_devices"] > 1:
        assert all(link["rate"]["bus_bytes_per_s"] > 0 for link in found["links"]) and found["links"]

    machines, skipped = read_machines(LocalStore(tmp_path))
    assert skipped == ()
    assert [machine.group for machine in machines] == ["local"]
    assert {rate.dtype for rate in machines[0].rates} == {"fp32", "bf16"}
    assert len(files(tmp_path)) == 1


@pytest.mark.soak
def test_what_this_machine_computes_is_recorded_and_another_result_is_a_failure(tmp_path: Path) -> None:
    own, doctor = tmp_path / "own.json", [*DOCTOR, "--store", str(tmp_path / "store")]

    first = run([*doctor, "--record-golden", str(own)])
    assert first.returncode in USABLE, first.stdout + first.stderr
    assert "1 compute alike; none recorded to compare with" in first.stdout

    second = run([*doctor, "--golden", str(own)])
    assert second.returncode in USABLE, second.stdout + second.stderr
    assert "1 compute as recorded" in second.stdout

    body = json.loads(own.read_text())
    body["recorded"][0]["digests"]["bf16 attention"] = "0" * 32
    own.write_text(json.dumps(body))
    third = run([*doctor, "--golden", str(own)])
    assert third.returncode == 1, third.stdout + third.stderr
    assert "device 0 computes other results than was recorded" in third.stdout
    assert third.stdout.count("bf16 attention") == 1

    own.write_text("{}")
    wrong = run([*doctor, "--golden", str(own)])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1].startswith(f"longhaul doctor: {own}: holds no digests")


@pytest.mark.soak
def test_a_file_in_the_way_of_the_store_is_unusable_and_the_machine_is_told_all_the_same(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").write_text("in the way")

    done = run([*DOCTOR, "--store", str(tmp_path / "store")])

    assert done.returncode == 1, done.stdout + done.stderr
    assert "fp32 products" in done.stdout
    assert "choose another with --store" in done.stdout
    assert "Not usable as it is." in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run([*DOCTOR, "--store", str(tmp_path)], RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("longhaul doctor: RAY_ADDRESS=127.0.0.1:1: ")
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_all_nodes_of_a_cluster_answer_and_their_links_are_measured(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.replace("FOLDER", str(tmp_path / "near")))
    with cluster(tmp_path) as there:
        flags = ["--cluster", str(tmp_path / "cluster.yaml"), "--spec", str(tmp_path / "run.yaml"), "--json"]
        done = run([*DOCTOR, *flags, "--store", str(tmp_path / "store")], **there.environment)

    assert done.returncode in USABLE, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {(answer["asked"]["group"], answer["asked"]["name"]) for answer in found["answers"]} == {
        ("green", "green-0"),
        ("green", "green-1"),
        ("red", "red-0"),
    }
    for answer in found["answers"]:
        assert_measured(answer["facts"])
        assert answer["sees_store"] is True
        # All clocks are this machine's.
        assert abs(answer["skew"]["offset_s"]) <= answer["skew"]["uncertainty_s"] + 0.01
    links = {(link["group"], link["node"]): link["rate"]["num_ranks"] for link in found["links"]}
    assert links == {("green", "green-0"): 2, ("green", "green-1"): 2, ("green", None): 2}
    assert found["forecast"]["refused"] is None
    assert found["forecast"]["local_folder"] == str(tmp_path / "near")


@pytest.mark.soak
def test_a_node_that_stops_answering_is_a_finding_and_the_others_answer(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        silent = raylet_of("red-0", there)
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            done = run([*DOCTOR, "--json", "--store", str(tmp_path / "store")], **there.environment)
        finally:
            silent.kill()

    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    facts = {answer["asked"]["name"]: answer["facts"] for answer in found["answers"]}
    assert isinstance(facts["red-0"], str)
    assert_measured(facts["green-0"])
    assert [one["subject"] for one in found["findings"] if "does not answer" in one["found"]] == [
        "red: red-0"
    ]


@contextmanager
def cluster(folder: Path) -> Iterator[MixedCluster]:
    path = folder / "cluster.yaml"
    path.write_text(CLUSTER)
    with mixed_cluster(read_cluster(path)) as found:
        yield found


def raylet_of(name: str, there: MixedCluster) -> psutil.Process:
    place = f"{there.root / name}/"
    (found,) = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "raylet" and place in " ".join(process.info["cmdline"] or [])
    ]
    return found


def assert_measured(facts: dict[str, Any]) -> None:
    """Nothing failed, and every rate is a number of this world."""
    assert facts["problems"] == []
    assert facts["memory_bytes"] > 0
    assert facts["disk"]["write_bytes_per_s"] > 0
    assert facts["disk"]["fsync_s"] > 0
    rates = {(gemm["dtype"], tuple(gemm["shape"].values())): gemm["flops_per_s"] for gemm in facts["gemms"]}
    assert len(rates) == 8
    assert all(1e6 < rate < 1e16 for rate in rates.values())
