"""What a start without Ray says of a device that it can't use, and of ranks that don't meet."""

from types import SimpleNamespace

import pytest
import torch

from cluster.probe import door, numa
from cluster.probe.roll_call import Unmet
from jobs.launch import inline
from jobs.launch.torchrun import LauncherPlace
from jobs.training.device.fingerprint import fingerprint_of
from tests.live.trainings import CPU

ALONE = LauncherPlace(rank=0, world_size=1, local_rank=0)


@pytest.mark.parametrize(("kind", "named"), [("mps", "mps"), ("xpu", "xpu"), ("cuda", None)])
def test_a_kind_of_device_that_nothing_here_can_use_is_known(
    kind: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(type=kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    assert door.unusable_kind() == named


def test_a_device_that_is_left_unused_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(door, "unusable_kind", lambda: "mps")
    inline.run_inline([], ALONE, _heard)
    assert (
        capsys.readouterr().err
        == "mps: nothing is computed on this machine's device; its ranks take the CPU\n"
    )


def test_on_a_machine_without_devices_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    inline.run_inline([], ALONE, _heard)
    assert capsys.readouterr().err == ""


def test_ranks_that_do_not_meet_end_with_their_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unmet(*_: object, **__: object) -> None:
        raise Unmet("rank 1 did not come", [1])

    monkeypatch.setattr(inline, "all_met", unmet)
    with pytest.raises(SystemExit) as ended:
        inline.run_inline([], ALONE, _heard)
    assert (ended.value.code, ended.value.__cause__) == (1, None)
    assert capsys.readouterr().err == "rank 1 did not come\n"


def test_a_rank_is_bound_near_its_device_before_it_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str | None] = []
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9D, pci_device_id=0)
    monkeypatch.setitem(door.KINDS, "cuda", SimpleNamespace(get_device_properties=lambda _: place))
    monkeypatch.setattr(numa, "bind", done.append)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(str(device)))
    assert str(door.take_near(3)) == "cuda:3"
    assert done == ["0000:9d:00", "cuda:3"]


@pytest.mark.parametrize("bound", ["", "threads on node 1"])
def test_a_row_tells_where_its_rank_is_bound(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "bound", lambda: bound)
    assert fingerprint_of(CPU, {}).get("NUMA binding", "") == bound


def _heard(_: object) -> None:
    raise AssertionError("there is nothing to hear")
