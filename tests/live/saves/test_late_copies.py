"""Saves and restores wait for copies, on whichever kind of device: see ``tests.live.late_device``."""

from functools import partial

import pytest
import torch

from checkpointing.saving.snapshot import Arena, Landing, Piece, layout
from tests.live.late_device import LATE, POISON, LateDevice

SEEDS = range(4)


def device(seed: int, monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    late = LateDevice(seed)
    late.stand_in(monkeypatch)
    return late


def pieces_of(late: LateDevice) -> list[Piece]:
    """Of three tensors on the device and one on the host."""
    values = [late.tensor(torch.arange(6.0) + 100 * number) for number in range(3)]
    return [
        *(Piece(name=f"w{number}", shape=(6,), start=0, values=one) for number, one in enumerate(values)),
        Piece(name="host", shape=(6,), start=0, values=torch.arange(6.0) - 100),
    ]


def assert_of_the_step_before(late: LateDevice, arena: Arena, first: int) -> None:
    """What is saved from byte ``first`` on is ``pieces_of`` and one, and stays so."""
    saved = bytes(arena.data)
    late.synchronize()
    assert bytes(arena.data) == saved
    whole = torch.frombuffer(arena.data, dtype=torch.float32, offset=first)
    expected = [torch.arange(6.0) + 100 * number + 1 for number in (0, 1, 2, -1)]
    assert whole.tolist() == torch.cat(expected).tolist()


def test_the_device_is_as_late_as_a_device_may_be() -> None:
    late = LateDevice(0)
    with late.present():
        there = torch.zeros(3, device=LATE) + 1
        host = there.to("cpu", non_blocking=True)
        assert host.tolist() == [POISON] * 3
        late.synchronize()
        assert host.tolist() == [1.0] * 3
        assert (there * 2).cpu().tolist() == [2.0] * 3
    assert late.waits == 2


def test_its_streams_are_in_order_each_and_in_no_order_among_them() -> None:
    orders = set()
    for seed in range(20):
        late, done = LateDevice(seed), list[str]()
        for stream, name in ((0, "a"), (1, "b"), (0, "c"), (1, "d")):
            with late.on_stream(stream):
                late.enqueue(partial(done.append, name))
        late.synchronize()
        orders.add("".join(done))
    assert len(orders) > 3
    assert all(
        order.index("a") < order.index("c") and order.index("b") < order.index("d") for order in orders
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_has_what_was_computed_before_it_and_nothing_of_what_comes_after(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = device(seed, monkeypatch)
    pieces = pieces_of(late)
    arena = Arena(pieces, found := layout(pieces))
    for piece in pieces:
        piece.values.add_(1)
    arena.take(pieces)
    for piece in pieces:
        piece.values.mul_(0)
    assert_of_the_step_before(late, arena, len(found.header))


@pytest.mark.parametrize("seed", range(8))
def test_a_lazy_cut_has_the_same_and_the_training_does_not_wait(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = device(seed, monkeypatch)
    pieces = pieces_of(late)
    arena = Arena(pieces, found := layout(pieces))
    for piece in pieces:
        piece.values.add_(1)
    arena.begin(pieces).settle()
    for piece in pieces:
        piece.values.mul_(0)
    assert (late.waits, late.events_waited_for) == (0, 0)
    assert_of_the_step_before(late, arena, len(found.header))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_loaded_is_on_the_device_before_its_memory_goes_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = device(seed, monkeypatch)
    pieces = pieces_of(late)
    landing = Landing(pieces)
    for number, buffer in enumerate(landing.buffers):
        torch.frombuffer(buffer, dtype=torch.float32).fill_(number)
    landing.settle()
    for buffer in landing.buffers[:3]:
        torch.frombuffer(buffer, dtype=torch.float32).fill_(POISON)
    assert [piece.values.cpu().tolist() for piece in pieces] == [[float(number)] * 6 for number in range(4)]
