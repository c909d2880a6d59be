"""What an attempt leaves in its run's log, where the store does not answer."""

import threading

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Load
from checkpointing.stores.contract import Buffer
from checkpointing.stores.memory import MemoryStore
from jobs.training.loop.ending import note_resumed
from tests.unit.small_generations import RUN, generation

DEADLINE_S = 20.0


class Silent(MemoryStore):
    """Whoever creates something while it is ``away`` waits until it is back, or for ``DEADLINE_S``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.back, self.heard = threading.Event(), threading.Event()

    def create(self, name: str, data: Buffer) -> None:
        if self.is_away:
            self.back.wait(DEADLINE_S)
        super().create(name, data)
        self.heard.set()


def test_a_store_that_is_away_at_the_first_step_holds_nobody_up_and_hears_of_it_later() -> None:
    store = Silent()
    repository = Repository(store, RUN)
    term, loaded = repository.take_over("me"), generation(1)
    repository.append(Commit(generation=loaded), term=term)
    repository.append(Load(name=loaded.name), term=term)
    store.is_away = True
    store.heard.clear()
    note_resumed(repository, loaded.name, term=term, timeout_s=0.1)
    assert not store.heard.is_set()

    store.back.set()
    assert store.heard.wait(DEADLINE_S)
    assert Repository(store, RUN).refresh().loads == {}
