"""What tries random histories: a failure always names its seed, and leaves neither process nor thread."""

import os
import random
import re
import threading
from multiprocessing import active_children

import pytest

from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from tests.faults import PowerCut
from tests.unit import turns
from tests.unit.seeds import SEED, each_seed, in_processes
from tests.unit.turns import Turns

DEADLINE_S = 60.0


class Unsendable(Exception):
    """As some of libraries, it can't be made from its message alone, which is how ``pickle`` does it."""

    def __init__(self, *, what: str) -> None:
        super().__init__(what)


def fail(seed: int) -> int:
    raise Unsendable(what=f"it failed, and {seed} shows it")


def fail_from(first: int, num: int) -> int:
    return each_seed(fail, first, num, "FILE")


def die_from(first: int, num: int) -> int:
    os._exit(1)


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED, raising=False)


def test_an_exception_that_no_process_can_send_names_its_seed() -> None:
    with pytest.raises(BaseException) as error:
        in_processes(fail_from, 2, "trials", chunk=1)
    said = re.search(r"and (\d+) shows it", str(error.value))
    assert said and f"again: {SEED}={said[1]} " in str(error.value)


def test_a_process_that_is_gone_tells_which_seeds_were_tried_and_none_is_left() -> None:
    before = {*active_children()}
    with pytest.raises(Exception) as error:
        in_processes(die_from, 2, "trials", chunk=1)
    assert any(re.match(r"seeds \d+ to \d+, 1 at a time", note) for note in error.value.__notes__)
    assert {*active_children()} == before


def get(store: Store) -> None:
    store.size("a")


def test_once_an_actor_hangs_no_other_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_DEADLINE_S", 0.1)
    order, may_end = Turns(MemoryStore(), random.Random(0)), threading.Event()
    before = {*threading.enumerate()}
    order.add("waits", get)
    with pytest.raises(AssertionError, match="hangs never came back"):
        order.add("hangs", lambda store: may_end.wait(DEADLINE_S))
    (waiting,) = (one for one in threading.enumerate() if one not in before and one.name == "waits")
    may_end.set()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_an_actor_that_is_killed_is_an_outcome_at_once() -> None:
    def dies(store: Store) -> None:
        raise PowerCut("now")

    order = Turns(MemoryStore(), random.Random(0))
    order.add("dies", dies)
    assert isinstance(order.run()["dies"], PowerCut)
