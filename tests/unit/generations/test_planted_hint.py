"""The hint of a log in a store that is a folder, where others may put anything in its place."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.log.log import Hint, Log, read_hint
from checkpointing.stores.contract import Denied
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore

PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda place, target: place.symlink_to(target),
    "pipe": lambda place, _: os.mkfifo(place),
    "folder": lambda place, _: place.mkdir(),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_link_or_a_pipe_in_the_place_of_the_hint_stops_nothing(what: str, tmp_path: Path) -> None:
    store, private = LocalStore(tmp_path / "store"), tmp_path / "private"
    private.write_text("mine", encoding="utf-8")
    assert Log(store, "r").lease("first") == 1
    place = tmp_path / "store/runs/r/hint.json"
    place.unlink()
    PLANTED[what](place, private)
    assert read_hint(store, "r") == Hint()
    assert Log(store, "r").read().term == 1
    assert Log(store, "r").lease("second") == 2
    assert Log(store, "r").read().owner == "second"
    assert private.read_text(encoding="utf-8") == "mine"


def test_a_hint_that_the_store_refuses_to_give_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may tell of terms whose records are gone."""
    store = MemoryStore()
    assert Log(store, "r").lease("first") == 1

    def refuse(*_: object, **__: object) -> bytes:
        raise Denied("store: 403")

    monkeypatch.setattr(store, "get_range", refuse)
    with pytest.raises(Denied):
        read_hint(store, "r")


@pytest.mark.parametrize("number", [10**12, 10**15, -1, True, 1.5])
def test_a_hint_of_a_number_that_no_record_has_tells_of_no_lost_records(number: float) -> None:
    store = MemoryStore()
    log = Log(store, "r")
    log.lease("first")
    store.put("runs/r/hint.json", json.dumps({"number": number}).encode())
    assert log.read().term == 1
    assert log.num_gone == 0
