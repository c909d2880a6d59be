"""Runs whose manifests are in pieces go on as all others, also where a piece is lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.format import pieces
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Quarantine
from checkpointing.stores.opening import open_store
from tests.live.attempts import Story, Wanted, attempt_each, digests_of, newest_manifest
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for

HALF, WHOLE = 4, 8


def attempt_in_pieces(wanted: list[Wanted]) -> list[Story]:
    """Runs on a rank. Its trainings are small, but save as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
        return attempt_each(wanted)


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
