"""What healthy devices computed is kept in a file, and what another device computes is compared with it."""

import os
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

from cluster.probe.kernels.recorded import NotRecorded, Recorded, as_text, in_package, of_nodes
from cluster.probe.kernels.recorded_file import add, in_file, in_file_if_any
from cluster.probe.node_facts import NodeFacts
from jobs.doctor.examination import Examination, Finding
from jobs.doctor.node_checks import exit_code, judge
from tests.unit.examinations import A1, A2, HEALTHY, amd, answer, asked, kernels, nvidia

H100 = "NVIDIA H100 80GB HBM3, torch 2.13.0+cu130"
A3 = asked("aaaa3333", "gpu-3", "nvidia")
GOLDEN = of_nodes([nvidia()])


def seen(*nodes: NodeFacts, golden: tuple[Recorded, ...] = ()) -> Examination:
    answers = tuple(answer(who, facts) for who, facts in zip((A1, A2, A3), nodes, strict=False))
    return replace(HEALTHY, answers=answers, links=(), promises=(), forecast=None, golden=golden)


def told(examination: Examination) -> list[Finding]:
    words = ("compute", "other results", "devices differ", "none recorded")
    return [one for one in judge(examination) if any(word in one.found for word in words)]


def test_the_package_has_no_recorded_device_and_the_doctor_says_so() -> None:
    assert in_package() == ()
    (finding,) = told(seen(nvidia(), golden=in_package()))
    assert (finding.level, finding.subject) == ("ok", "known kernels")
    assert finding.found == f"{H100}: 2 compute alike; none recorded to compare with"


def test_devices_that_compute_as_recorded_are_told_so() -> None:
    (finding,) = told(seen(nvidia(), nvidia(), golden=GOLDEN))
    assert (finding.level, finding.found) == ("ok", f"{H100}: 4 compute as recorded")


def test_a_device_that_computes_otherwise_than_recorded_is_named_be_it_the_only_one_or_all_do() -> None:
    bad = nvidia(kernels=kernels(product="xx"))
    examination = seen(bad, golden=GOLDEN)
    (finding,) = told(examination)
    assert (finding.level, finding.subject) == ("failed", "nvidia: gpu-1")
    assert finding.found == f"device 1 computes other results than was recorded ({H100}): bf16 product"
    assert exit_code(judge(examination)) == 1
    alone = nvidia(kernels=tuple(one for one in bad.kernels if one.device == 1))
    assert [one.level for one in told(seen(alone, golden=GOLDEN))] == ["failed"]


def test_without_a_record_the_majority_of_a_kind_decides_over_all_nodes() -> None:
    bad = nvidia(kernels=kernels(product="xx", attention="yy"))
    (finding,) = told(seen(nvidia(), bad, nvidia()))
    assert (finding.level, finding.subject) == ("failed", "nvidia: gpu-2")
    assert finding.found == (
        f"device 1 computes other results than most devices of its kind ({H100}): "
        "bf16 product, bf16 attention"
    )


def test_of_two_that_differ_nobody_knows_which_is_right() -> None:
    (finding,) = told(seen(nvidia(kernels=kernels(attention="yy"))))
    assert (finding.level, finding.subject) == ("failed", "known kernels")
    assert finding.found == (f"{H100}: devices differ, and no majority says which are right: bf16 attention")


@pytest.mark.parametrize(
    "other",
    [
        {"model": "NVIDIA H200"},
        {"platform": "rocm"},
        {"versions": {**nvidia().versions, "torch": "2.13.1+cu130"}},
        {"versions": {**nvidia().versions, "torch": "2.13.0+cu128"}},
    ],
    ids=str,
)
def test_another_model_platform_or_torch_is_not_compared(other: dict[str, object]) -> None:
    foreign = nvidia(kernels=kernels(num_devices=1), **other)
    own = replace(foreign, kernels=tuple(replace(one, digest="zz") for one in foreign.kernels))
    assert {one.level for one in told(seen(own, nvidia(), golden=GOLDEN))} == {"ok"}


def test_a_kernel_that_nobody_recorded_is_compared_among_the_devices() -> None:
    older = (replace(GOLDEN[0], digests={"bf16 product": "a1"}),)
    (finding,) = told(seen(nvidia(), nvidia(kernels=kernels(attention="yy")), golden=older))
    assert (finding.subject, finding.found.rpartition(": ")[2]) == ("nvidia: gpu-2", "bf16 attention")


def test_what_is_recorded_is_read_again_and_of_one_kind_the_last_counts(tmp_path: Path) -> None:
    file, newer = tmp_path / "own.json", replace(GOLDEN[0], digests={"bf16 product": "new"})
    file.write_text(as_text([*GOLDEN, *of_nodes([amd()]), newer]))
    found = in_file(file)
    assert {one.kind: one.digests for one in found} == {
        newer.kind: newer.digests,
        of_nodes([amd()])[0].kind: of_nodes([amd()])[0].digests,
    }
    assert as_text(found) == file.read_text()


def test_devices_that_differ_are_not_recorded() -> None:
    with pytest.raises(NotRecorded, match="devices of NVIDIA H100 80GB HBM3 differ in bf16 product"):
        of_nodes([nvidia(), nvidia(kernels=kernels(product="xx"))])


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "{", "null", '{"schema": 1}', '{"schema": 2, "recorded": []}',
        '{"schema": 1, "recorded": [{}]}', '{"schema": 1, "recorded": [7]}', "[" * 100_000,
        '{"schema": 1, "recorded": [{"model": 1, "platform": "cpu", "torch": "2", "digests": {}}]}',
        '{"schema": 1, "recorded": [{"model": "m", "platform": "cpu", "torch": "2", "digests": {"k": 1}}]}',
        '{"schema": 1, "recorded": [{"model": "m", "platform": "cpu", "torch": "2", "digests": 5}]}',
        '{"schema": 1, "recorded": [{"model": "m", "platform": "cpu", "torch": "2", "digests": {}}]}',
    ],
)  # fmt: skip
def test_a_file_that_holds_none_is_one_line_with_its_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(text)
    with pytest.raises(NotRecorded, match=r"own\.json: ") as caught:
        in_file(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name in ("none.json", "bytes.json"):
        with pytest.raises(NotRecorded, match=name):
            in_file(tmp_path / name)


def test_what_a_file_holds_makes_no_message_long(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    for text in ('{"schema": "%s"}', '{"schema": 1, "recorded": [{"model": 1, "digests": {"%s": 1}}]}'):
        file.write_text(text % ("x" * 10**6))
        with pytest.raises(NotRecorded) as caught:
            in_file(file)
        assert len(str(caught.value)) < 1000


def test_kernels_that_are_not_recorded_are_told_and_never_count_as_recorded() -> None:
    older = (replace(GOLDEN[0], digests={"bf16 product": "a1"}),)
    (finding,) = told(seen(nvidia(), nvidia(), golden=older))
    assert finding.found == f"{H100}: 4 compute as recorded, but 1 of 2 kernels are not recorded"
    foreign = (replace(GOLDEN[0], digests={"fp8 product": "a1"}),)
    (finding,) = told(seen(nvidia(), nvidia(), golden=foreign))
    assert finding.found == f"{H100}: 4 compute alike; none recorded to compare with"
    (finding,) = told(seen(nvidia(), nvidia(kernels=kernels(attention="yy")), golden=older))
    assert "than most devices of its kind" in finding.found


def test_of_one_device_nobody_says_that_it_is_like_others() -> None:
    (finding,) = told(seen(nvidia(kernels=kernels(num_devices=1))))
    assert finding.found == f"{H100}: 1 device; none recorded to compare with"


def test_devices_of_two_models_in_one_node_are_compared_each_with_its_own() -> None:
    usual = kernels()
    mixed = tuple(
        replace(one, model="NVIDIA T4", digest=f"t4 {one.digest}") if one.device else one for one in usual
    )
    findings = told(seen(nvidia(kernels=mixed), nvidia(kernels=kernels(num_devices=1)), golden=GOLDEN))
    assert [one.found for one in findings] == [
        f"{H100}: 2 compute as recorded",
        "NVIDIA T4, torch 2.13.0+cu130: 1 device; none recorded to compare with",
    ]
    assert {one.model for one in of_nodes([nvidia(kernels=mixed)])} == {"NVIDIA H100 80GB HBM3", "NVIDIA T4"}


def test_of_two_nodes_of_one_name_each_is_compared() -> None:
    bad = nvidia(kernels=kernels(product="xx"))
    twins = replace(seen(bad, nvidia()), answers=tuple(answer(A1, facts) for facts in (bad, nvidia())))
    (finding,) = told(twins)
    assert (finding.level, finding.subject) == ("failed", "nvidia: gpu-1")


def test_where_no_device_computed_anything_nothing_is_recorded() -> None:
    with pytest.raises(NotRecorded, match="no device has computed"):
        of_nodes([nvidia(kernels=())])


def test_what_is_added_replaces_its_kind_alone_and_says_which_were_others(tmp_path: Path) -> None:
    file, link = tmp_path / "own.json", tmp_path / "link.json"
    link.symlink_to(file)
    assert in_file_if_any(link) == ()
    assert add(link, of_nodes([amd(), nvidia()])) == ()
    assert add(link, GOLDEN) == ()
    newer = replace(GOLDEN[0], digests={"bf16 product": "new"})
    assert add(link, [newer]) == GOLDEN
    assert link.is_symlink() and {*tmp_path.iterdir()} == {file, link}
    assert {one.kind: one.digests for one in in_file(file)}[newer.kind] == newer.digests
    assert len(in_file(file)) == 2


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.json"
    add(file, GOLDEN)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        add(file, of_nodes([amd()]))
    assert file.read_bytes() == before and [*tmp_path.iterdir()] == [file]
