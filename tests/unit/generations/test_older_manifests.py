"""A run whose manifests an older version wrote, all of one object (``tests/fixtures/manifest_v1``)."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from checkpointing.format.loading import fill
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.adoption import rebuild
from checkpointing.generations.audit import audit_generations, audit_log, read_back
from checkpointing.generations.choice import choose
from checkpointing.generations.garbage import find_garbage
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.stores.local import LocalStore
from tests.unit.older_store import extract
from tests.unit.small_generations import RUN, Ranks, content, load

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "manifest_v1" / "store.tar.xz"
# What its ``write.py`` has put there at step 30.
NUM_RANKS, NUM_TENSORS = 12, 120


def values(name: str, num_bytes: int) -> bytes:
    return random.Random(name).randbytes(num_bytes)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Repository]:
    extract(ARCHIVE, tmp_path)
    repository = Repository(LocalStore(tmp_path), RUN)
    repository.refresh()
    yield repository


def wide_values(repository: Repository) -> dict[str, bytes]:
    manifest = repository.manifest(repository.view.generations[2])
    tensors = list(manifest.tensors.values())
    wants = [
        Want(tensor=one.name, start=0, length=one.num_elements, num_elements=one.num_elements, dtype="U8")
        for one in tensors
    ]
    buffers = [bytearray(want.length) for want in wants]
    place = repository.place(manifest.cut.generation)
    fill(manifest, plan(manifest, wants), [memoryview(one) for one in buffers], [place])
    return {tensor.name: bytes(values) for tensor, values in zip(tensors, buffers, strict=True)}


def test_every_generation_is_read_and_found_whole(older: Repository) -> None:
    assert audit_log(older.store, RUN) == []
    assert audit_generations(older) == []
    first, second, wide = older.view.generations
    assert [read_back(older, one) for one in (first, second, wide)] == [3, 3, NUM_RANKS]
    for found in (first, second):
        assert load(older, found) == content(found.name, 3)
    tensors = older.manifest(wide).tensors
    assert len(tensors) == NUM_TENSORS
    assert wide_values(older) == {name: values(name, tensor.num_elements) for name, tensor in tensors.items()}


def test_a_run_goes_on_from_it_and_retires_it(older: Repository) -> None:
    term = older.take_over("next")
    chosen = choose(older.view).chosen
    assert chosen is not None and chosen.step == 30
    ranks = Ranks(older, term, world_size=3, retention=Retention(last=2, best=0))
    new = [ranks.save(step) for step in (40, 50)]
    assert {name.split("/")[3] for name in older.store.list(f"runs/{RUN}/gen")} == set(new)
    garbage = find_garbage(older, now=datetime.now(UTC))
    assert (garbage.remainders, garbage.unnamed) == ((), ())


def test_a_log_is_made_from_it_anew(older: Repository) -> None:
    before = older.view.generations
    for name in [*older.store.list(f"runs/{RUN}/log"), f"runs/{RUN}/hint.json"]:
        older.store.delete(name)
    repository = Repository(older.store, RUN)
    repository.refresh()
    adoptions = list(rebuild(repository, "me"))
    assert [(one.generation.name, one.problem) for one in adoptions] == [(one.name, None) for one in before]
    digests = [one.manifest_digest for one in repository.view.generations]
    assert digests == [one.manifest_digest for one in before]
