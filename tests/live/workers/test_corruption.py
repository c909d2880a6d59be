"""Ranks find out which of them computes wrongly in silence, and checks change nothing of a training."""

from pathlib import Path

from tests.live.attempts import Wanted, attempt, digests_of, newest_manifest
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for


def test_checks_change_nothing(tmp_path: Path) -> None:
    found = []
    for every in (0, 2):
        wanted = Wanted(
            name="r",
            recipe=recipe_for("ddp", world_size=3),
            num_steps=6,
            store=tmp_path / str(every),
            check_every=every,
        )
        stories = run_ranks(attempt, wanted, num_ranks=3, tmp_path=tmp_path)
        print(stories[0].told)
        found.append(digests_of(newest_manifest(wanted.store, "r")))
    assert found[0] == found[1]
