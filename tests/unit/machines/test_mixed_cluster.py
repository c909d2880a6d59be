"""A mixed cluster on one machine: what it would start, what is told of nodes, who is called simulated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster_file import read_cluster
from cluster.inventory import GROUP_LABEL, SIMULATED_LABEL, VENDOR_LABEL, ClusterError
from cluster.local_ray.simulated import nodes_to_start
from cluster.nodes import seen_nodes
from cluster.promised_vs_live import differences
from jobs.cli.__main__ import main
from jobs.clusters.tables import as_data, as_lines
from jobs.launch.ray_executor import as_promised
from jobs.reports.compare_text import Side, as_json, as_markdown, as_text
from jobs.sweeps.score_table import score_table
from jobs.sweeps.tables import plan_table
from reporting.analysis.comparing import compare_sets
from reporting.results.result_rows import row_of
from tests.conftest import Golden, strict_json
from tests.unit.builders import cells_of, group, inventory, measurement, plans_of, record, run_of, sweep
from tests.unit.printed import checked
from tests.unit.result_rows import rows

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "cluster" / "mixed.yaml"


def entry(name: str, group: str, **changes: Any) -> dict[str, Any]:
    """A row of Ray's table of nodes. Those that are dead have no resources left."""
    labels = {GROUP_LABEL: group, VENDOR_LABEL: group, SIMULATED_LABEL: "true"}
    plain = {
        "NodeID": f"{name}-id",
        "NodeName": name,
        "Alive": True,
        "Labels": labels,
        "Resources": {"CPU": 2.0, "GPU": 1.0, "memory": 1e9},
    }
    return plain | changes


def dead(name: str, group: str, number: int) -> dict[str, Any]:
    why = "health check failed"
    return entry(name, group, NodeID=f"{name}-{number}", Alive=False, Resources={}, DeathReasonMessage=why)


def test_the_shipped_file_is_one_node_of_each_vendor_and_all_of_it_is_simulated() -> None:
    nodes = nodes_to_start(read_cluster(SHIPPED))

    assert [(node.name, node.num_cpus, node.num_gpus) for node in nodes] == [
        ("nvidia-0", 1, 1),
        ("amd-0", 1, 1),
    ]
    for node, vendor in zip(nodes, ("nvidia", "amd"), strict=True):
        assert node.labels == {GROUP_LABEL: vendor, VENDOR_LABEL: vendor, SIMULATED_LABEL: "true"}


def test_a_group_that_stands_for_real_devices_is_not_started() -> None:
    with pytest.raises(ClusterError, match=r"group 'amd' stands for real amd devices; .*longhaul\.simulated"):
        nodes_to_start(inventory(group("amd", (8,), vendor="amd")))


def test_cores_are_what_they_are() -> None:
    (node,) = nodes_to_start(inventory(group("cores", (2,))))

    assert (node.num_cpus, node.num_gpus, SIMULATED_LABEL in node.labels) == (2, 0, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.yaml", "--", "true"], "missing.yaml: can't be read"),
        (["missing.yaml", "--"], "there is no command"),
        (["missing.yaml"], "there is no command"),
        ([str(ROOT / "cluster.yaml"), "--", "true"], "stands for real nvidia devices"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line_and_starts_nothing(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["cluster", "local", *arguments]) == 2

    printed = capsys.readouterr()
    assert printed.err.startswith("longhaul cluster local: ")
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_show_without_a_cluster_says_where_to_find_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    assert main(["cluster", "show"]) == 2

    assert "RAY_ADDRESS names no cluster" in capsys.readouterr().err


def test_a_node_is_alive_draining_lost_or_back() -> None:
    table = [
        entry("amd-0", "amd"),
        entry("amd-1", "amd"),
        dead("amd-1", "amd", 1),
        dead("amd-1", "amd", 2),
        entry("nvidia-0", "nvidia"),
        dead("nvidia-1", "nvidia", 1),
        dead("nvidia-1", "nvidia", 2),
    ]

    nodes = seen_nodes(table, {"nvidia-0-id"})

    assert [(node.name, node.state, node.times_lost) for node in nodes] == [
        ("amd-0", "alive", 0),
        ("amd-1", "alive", 2),
        ("nvidia-0", "draining", 0),
        ("nvidia-1", "lost", 2),
    ]
    assert nodes[-1].node_id == "nvidia-1-2"


@pytest.mark.parametrize("reason", [3, 4])
def test_a_node_that_was_drained_and_is_gone_is_not_lost(reason: int) -> None:
    gone = dead("amd-0", "amd", 1) | {"DeathReason": reason, "DeathReasonMessage": "maintenance"}

    (node,) = seen_nodes([gone], set())
    (back,) = seen_nodes([gone, entry("amd-0", "amd")], set())

    assert (node.state, node.times_lost, node.why_gone) == ("drained", 0, "maintenance")
    assert (back.state, back.times_lost) == ("alive", 0)


def test_of_a_name_that_died_twice_the_later_life_counts_in_whatever_order_ray_has_them() -> None:
    lost = {**dead("amd-0", "amd", 1), "StartTimeMs": 1000}
    drained = {**dead("amd-0", "amd", 2), "StartTimeMs": 2000, "DeathReason": 3}
    for table in ([lost, drained], [drained, lost]):
        (node,) = seen_nodes(table, set())
        assert (node.state, node.times_lost) == ("drained", 1)


def test_nodes_that_share_a_name_are_all_told() -> None:
    nodes = seen_nodes([entry("host", "amd", NodeID="one"), entry("host", "amd", NodeID="two")], set())

    assert [node.node_id for node in nodes] == ["one", "two"]


def test_a_node_of_nobody_is_of_the_group_local() -> None:
    (node,) = seen_nodes([entry("host", "", Labels={})], set())

    assert (node.group, node.is_simulated) == ("local", False)


def test_what_is_shown_of_nodes_and_of_what_was_promised(golden: Golden) -> None:
    table = [entry("amd-0", "amd"), dead("amd-0", "amd", 1), dead("nvidia-0", "nvidia", 1)]
    amd = group("amd", (1,), vendor="amd", simulated=True)
    findings = differences(read_cluster(SHIPPED), inventory(amd))

    golden("cluster_show.txt", as_lines("127.0.0.1:6379", seen_nodes(table, {"amd-0-id"}), findings) + "\n")


def test_data_for_programs_has_what_people_see() -> None:
    nodes = seen_nodes([entry("amd-0", "amd"), dead("nvidia-0", "nvidia", 1)], set())
    findings = differences(read_cluster(SHIPPED), inventory())

    found = checked("cluster_show", json.dumps(as_data("127.0.0.1:6379", nodes, findings)))

    assert [(one["group"], one["nodes"][0]["state"]) for one in found["groups"]] == [
        ("amd", "alive"),
        ("nvidia", "lost"),
    ]
    assert {(one["group"], one["kind"]) for one in found["findings"]} >= {("amd", "missing_nodes")}


def test_plans_and_scores_say_which_groups_are_simulated() -> None:
    spec = sweep(groups=["amd", "local"])
    amd = group("amd", vendor="amd", simulated=True)
    plans = list(plans_of(spec, amd, group()).values())
    run = replace(run_of(spec), cell=cells_of(spec)[0])
    row = record(spec, run, measurement(run.run_id), amd, group())

    assert row.simulated
    assert plan_table(plans, 1).count("amd (simulated)") == 1
    assert score_table(cells_of(spec), [row_of(row.to_json(), row.run_id)]).count("amd (simulated)") == 1


def test_a_comparison_says_in_every_form_which_groups_are_simulated() -> None:
    amd, nvidia = rows(1000, 1001, group="amd", simulated=True), rows(1000, 1001, group="nvidia")
    sides = Side(text="a", rows=tuple(amd)), Side(text="b", rows=tuple(nvidia))
    found = compare_sets(*(side.rows for side in sides), 0.02)

    for write in (as_text, as_markdown):
        assert "on simulated devices, which say nothing of real ones: amd\n" in write(found, *sides, 0.02)
    assert strict_json(as_json(found, *sides, 0.02))["simulated_groups"] == ["amd"]


def test_plans_scores_and_comparisons_say_that_fp8_on_a_cpu_is_simulated() -> None:
    spec = sweep(axes={"precision": ["bf16"], "fp8": ["none", "rowwise"]})
    plans = list(plans_of(spec, group()).values())
    run = replace(run_of(spec), cell=cells_of(spec)[1])
    row = row_of(record(spec, run, measurement(run.run_id), group()).to_json(), run.run_id)

    assert [plan.is_simulated for plan in plans] == [False, True]
    assert plan_table(plans, 1).count("local (simulated)") == 1
    assert score_table(cells_of(spec), [row]).count("local (simulated)") == 1

    sides = Side(text="a", rows=(row,)), Side(text="b", rows=(row,))
    found = compare_sets(*(side.rows for side in sides), 0.02)
    for write in (as_text, as_markdown):
        text = write(found, *sides, 0.02)
        assert "with simulated fp8, which says nothing of real ones: local\n" in text
        assert "on simulated devices" not in text
    assert strict_json(as_json(found, *sides, 0.02))["simulated_groups"] == ["local"]


def test_what_was_planned_as_real_is_never_run_on_simulated_devices() -> None:
    real, simulated = (group("amd", vendor="amd", simulated=is_so) for is_so in (False, True))

    there = group("amd", (4, 4), vendor="amd")

    assert (as_promised(real, None), as_promised(real, there)) == (real, there)
    with pytest.raises(
        ClusterError, match="its devices are simulated, but the cluster file promises real ones"
    ):
        as_promised(real, simulated)
