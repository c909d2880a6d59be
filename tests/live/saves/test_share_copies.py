"""Shares that hosts bring each other: nothing is kept that is not what was saved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing.format.digests import digests
from checkpointing.format.manifest import Cut, FilePart, encode_part
from checkpointing.saving.memory_tier import MemoryTier
from cluster.probe.gloo_store import GlooGroup
from jobs.training.state.share_copies import Held, bring, receive
from tests.live.ranks import run_ranks
from tests.unit.small_generations import cut_of, file_of, part_of

KEY = b"k" * 32
CUT = cut_of(10, term=1, number=1, world_size=2)
RANK = 1


def share_of(rank: int = RANK) -> tuple[Cut, FilePart, bytes]:
    data = file_of(CUT, rank)
    return CUT, replace(part_of(CUT, rank), chunks=digests(memoryview(data))), data


def send(group: GlooGroup, *pieces: bytes, sizes: tuple[int, ...] | None = None) -> None:
    told = torch.tensor(sizes or [len(piece) for piece in pieces])
    for piece in (told, *(torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in pieces)):
        group.send([piece], 0, 0).wait()  # type: ignore[attr-defined]  # torch's stubs do not list it


def forged(group: GlooGroup) -> None:
    """What a rank sends that is broken, then what it sends as it should, then what nobody could take."""
    cut, part, data = share_of()
    flipped = bytes([data[0] ^ 1]) + data[1:]
    send(group, encode_part(cut, part), flipped)
    send(group, encode_part(*share_of(0)[:2]), share_of(0)[2])
    send(group, b"{}", data)
    send(group, sizes=(0, 0))


def received(folder: str) -> list[list[str]]:
    group = GlooGroup(KEY, 60.0)
    tier = MemoryTier(Path(folder) / str(dist.get_rank()), "r")
    if dist.get_rank() == RANK:
        forged(group)
        cut, part, data = share_of()
        tier.keep(cut, part, memoryview(data))
        bring(group, Held(tier=tier, cut=cut, part=part), to=0)
        send(group, sizes=(10, 2**60))
        found = []
    else:
        found = [receive(group, {RANK: RANK}, tier, most_bytes=len(share_of()[2])) for _ in range(5)]
        with pytest.raises(RuntimeError, match="a share of 1152921504606846976 bytes, expected at most"):
            receive(group, {RANK: RANK}, tier, most_bytes=len(share_of()[2]))
        assert [(one.generation, kept.rank) for one, kept in tier.inventory()] == [(CUT.generation, RANK)]
    dist.barrier()
    group.close()
    return found


def test_only_a_whole_share_of_the_rank_that_is_expected_is_kept(tmp_path: Path) -> None:
    found, _ = run_ranks(received, str(tmp_path), num_ranks=2, tmp_path=tmp_path)
    broken, another, unread, nothing, whole = found
    saying = "the copy of rank 1's share: "
    assert broken == another == [f"{saying}it is not what was saved"]
    assert unread[0].startswith(saying) and len(unread) == 1
    assert (nothing, whole) == ([f"{saying}there is none"], [])
