"""Runs whose manifests are in pieces go on as all others, also where a piece is lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from checkpointing.format import pieces
from checkpointing.format.pieces import decode_root
from checkpointing.generations.manifests import manifest_bytes
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Quarantine
from checkpointing.stores.opening import open_store
from jobs.training.state import rank_mailbox
from tests.live.attempts import Story, Wanted, attempt_each, digests_of, newest_manifest
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for

HALF, WHOLE = 4, 8


def attempt_in_pieces(wanted: list[Wanted]) -> list[Story]:
    """Runs on a rank. Its trainings are small, but save as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
        return attempt_each(wanted)


def attempt_apart(wanted: list[Wanted]) -> list[Story]:
    """As ``attempt_in_pieces``, but rank 3 does not reach its leader, as from a container of its own."""
    box_of_leader = rank_mailbox._box_of_leader

    def from_elsewhere(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if dist.get_rank() == 3:
                patch.setattr(rank_mailbox, "_LOOPBACK", "127.0.0.9")
            return box_of_leader(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_mailbox, "_box_of_leader", from_elsewhere)
        return attempt_in_pieces(wanted)


def go(wanted: list[Wanted], tmp_path: Path) -> list[Story]:
    """Rank 0's stories."""
    return run_ranks(attempt_in_pieces, wanted, num_ranks=2, tmp_path=tmp_path)[0]


def test_a_lost_piece_is_made_good_by_the_disks_and_else_costs_one_save(tmp_path: Path) -> None:
    store = tmp_path / "store"
    recipe = recipe_for("fsdp", world_size=2)
    straight = Wanted(name="straight", recipe=recipe, num_steps=WHOLE, store=store, every_steps=2)
    near = replace(straight, name="near", num_steps=HALF, disk=tmp_path / "disk")
    far = replace(straight, name="far", num_steps=HALF)
    go([straight, near, far], tmp_path)
    newest = {}
    for name in ("near", "far"):
        newest[name] = Repository(open_store(str(store)), name).refresh().generations[-1]
        assert newest[name].is_good
        (store / f"runs/{name}/gen/{newest[name].name}/ranks-00000.json").unlink()
    after = go([replace(one, num_steps=WHOLE) for one in (near, far)], tmp_path)
    assert [story.start.step for story in after] == [HALF, 2]
    why = {name: [one.entry for one in Repository(open_store(str(store)), name).records()] for name in newest}
    quarantined = {name: [one for one in why[name] if isinstance(one, Quarantine)] for name in newest}
    assert quarantined["near"] == []
    (lost,) = quarantined["far"]
    assert lost.name == newest["far"].name and "ranks-00000.json is gone" in lost.reason
    expected = digests_of(newest_manifest(store, "straight"))
    for name in newest:
        assert digests_of(newest_manifest(store, name)) == expected, name


def test_each_host_writes_its_piece_and_a_run_goes_on_from_them(tmp_path: Path) -> None:
    straight = Wanted(
        name="straight",
        recipe=recipe_for("fsdp", world_size=4),
        num_steps=WHOLE,
        store=tmp_path / "store",
        every_steps=2,
    )
    led = replace(straight, name="led", nodes=("a", "a", "b", "b"), num_steps=HALF)
    apart = replace(led, name="apart")
    together = run_ranks(attempt_in_pieces, [straight, led], num_ranks=4, tmp_path=tmp_path)[0]
    alone = run_ranks(attempt_apart, [apart], num_ranks=4, tmp_path=tmp_path)[0]
    assert not [note for story in (*together, *alone) for note in story.saves if note.problem]
    firsts = {}
    for name in ("straight", "led", "apart"):
        repository = Repository(open_store(str(straight.store)), name)
        newest = repository.refresh().generations[-1]
        assert newest.is_good
        root = decode_root(manifest_bytes(repository.place(newest.name), newest))
        firsts[name] = [piece.first for piece in root.pieces]
    assert firsts == {"straight": [0], "led": [0, 2], "apart": [0]}
    after = run_ranks(
        attempt_in_pieces,
        [replace(one, num_steps=WHOLE) for one in (led, apart)],
        num_ranks=4,
        tmp_path=tmp_path,
    )[0]
    assert [story.start.step for story in after] == [HALF, HALF]
    expected = digests_of(newest_manifest(straight.store, "straight"))
    for name in ("led", "apart"):
        assert digests_of(newest_manifest(straight.store, name)) == expected, name
