"""Whole generations go back into a log that lost them: every byte is read, and terms only rise."""

from collections.abc import Sequence

import pytest

from checkpointing.errors import Fenced
from checkpointing.generations import adoption, audit
from checkpointing.generations.adoption import adopt, adoptable, rebuild
from checkpointing.generations.audit import audit_log
from checkpointing.generations.choice import choose, find
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Generation, Pin
from checkpointing.log.log import read_hint
from checkpointing.stores.contract import Store, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from tests.unit.printed import checked
from tests.unit.small_generations import RUN, Ranks, content, load, names

pytestmark = pytest.mark.usefixtures("each_form")

LOG, HINT, GEN = f"runs/{RUN}/log", f"runs/{RUN}/hint.json", f"runs/{RUN}/gen"
TWO = Retention(last=2, best=0)


def trained(store: Store, *steps: int) -> list[str]:
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"), retention=TWO if len(steps) == 3 else None)
    return [ranks.save(step) for step in steps]


def go_back(store: Store, num_records: int) -> None:
    for name in sorted(store.list(LOG))[-num_records:]:
        store.delete(name)


def lose(store: Store) -> None:
    for name in [*store.list(LOG), HINT]:
        store.delete(name)


def refreshed(store: Store) -> Repository:
    repository = Repository(store, RUN)
    repository.refresh()
    return repository


def payload(store: Store) -> set[str]:
    return {name.split("/")[3] for name in store.list(GEN)}


def test_after_an_adoption_a_start_goes_on_from_the_newest_and_deletes_none() -> None:
    store = MemoryStore()
    saved = trained(store, 10, 20, 30, 40, 50)
    go_back(store, 6)
    tool = refreshed(store)
    assert [one.problem for one in adopt(tool, adoptable(tool))] == [None] * 3
    assert audit_log(store, RUN) == []
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 2
    chosen = choose(repository.view).chosen
    assert chosen and chosen.name == saved[-1]
    assert load(repository, repository.view.generations[-1]) == content(saved[-1], 1)
    ranks = Ranks(repository, 2, retention=TWO)
    for step in (60, 70, 80):
        ranks.save(step)
    assert payload(store) >= {*saved[2:]}


def test_one_that_is_older_than_what_the_log_names_is_not_the_newest_afterwards() -> None:
    store = MemoryStore()
    saved = trained(store, 10, 20)
    data = {name: store.get(name) for name in store.list(f"{GEN}/{saved[0]}")}
    repository = Repository(MemoryStore(), RUN)
    repository.take_over("me")
    Ranks(repository, 1, num_saved=1).save(20)
    for name, content_ in data.items():
        repository.store.put(name, content_)
    assert [one.problem for one in adopt(repository, adoptable(repository))] == [None]
    view = repository.view
    assert [one.step for one in view.generations] == [20, 10]
    assert (find(view, "latest", TWO).step, find(view, "backup", TWO).step) == (20, 10)


def test_what_is_damaged_stays_outside_and_what_cannot_be_read_now_too() -> None:
    class Away(MemoryStore):
        away = "nothing"

        def get_range(self, name: str, start: int, into: memoryview) -> int:
            if self.away in name:
                raise Unavailable(f"store: {name}: away")
            return super().get_range(name, start, into)

    store = Away()
    saved = trained(store, 10, 20, 30, 40)
    go_back(store, 6)
    file = f"{GEN}/{saved[1]}/rank-00000.safetensors"
    store.put(file, store.get(file)[:-1] + b"?")
    store.away = f"{saved[2]}/rank-"
    tool = refreshed(store)
    found = list(adopt(tool, adoptable(tool)))
    assert [(one.problem is None, one.is_corrupt) for one in found] == [
        (False, True), (False, False), (True, False),
    ]  # fmt: skip
    assert names(tool.view.generations) == [saved[0], saved[3]]
    assert payload(store) == {*saved}


def test_a_log_that_is_gone_is_made_again_and_gone_on_from() -> None:
    store = MemoryStore()
    saved = [*trained(store, 10, 20), *trained(store, 30)]
    lose(store)
    tool = refreshed(store)
    assert [one.problem for one in rebuild(tool, "a tool")] == [None] * 3
    assert (tool.view.term, names(tool.view.generations)) == (3, saved)
    assert all(one.is_pinned and one.is_good for one in tool.view.generations)
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 4
    chosen = choose(repository.view).chosen
    assert chosen and chosen.name == saved[-1]


def test_a_term_that_only_the_hint_tells_of_is_not_forgotten_by_whoever_appends() -> None:
    store = MemoryStore()
    trained(store, 10)
    for _ in range(5):
        Repository(store, RUN).take_over("killed at once")
    go_back(store, 5)
    assert read_hint(store, RUN).term == 6
    tool = refreshed(store)
    tool.append(Pin(name=tool.view.generations[0].name))
    assert read_hint(store, RUN).term == 6
    assert Repository(store, RUN).take_over("me") == 7


def test_generations_of_a_former_life_are_not_adopted() -> None:
    store = MemoryStore()
    trained(store, 10, 20)
    lose(store)
    Repository(store, RUN).take_over("me", fresh=True)
    assert adoptable(refreshed(store)) == []


def ask(store: LocalStore, *words: str) -> int:
    return main(["checkpoints", *words, "--run", RUN, "--store", str(store.root)])


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("store"))


def lines(capsys: pytest.CaptureFixture[str]) -> Sequence[str]:
    printed = capsys.readouterr()
    return [*printed.out.splitlines(), *printed.err.splitlines()]


def test_what_is_adopted_while_another_tool_begins_to_rebuild_the_log_is_in_it() -> None:
    """The other one's lease lies behind the records that are gone, where this one does not look."""
    store = MemoryStore()
    saved = trained(store, 10, 20, 30)
    go_back(store, 6)
    tool = refreshed(store)
    chosen = adoptable(tool)
    refreshed(store).lease("fsck --rebuild on another host")
    assert [one.problem for one in adopt(tool, chosen)] == [None] * len(chosen)
    found = refreshed(store).view
    assert {one.name for one in chosen} <= {*saved} and len(chosen) > 0
    assert all((one := found.generation(name.name)) and one.is_pinned for name in chosen)


def test_the_commands_say_what_they_took_back(folder: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    saved = trained(folder, 10, 20)
    go_back(folder, 2)
    assert ask(folder, "adopt", "no-such") == 2
    assert lines(capsys) == [
        f"longhaul checkpoints: 'no-such' is no whole generation outside of the log (these are: {saved[1]})"
    ]
    assert ask(folder, "adopt", saved[1]) == 0
    first, last = lines(capsys)
    assert first.startswith(f"{saved[1]}: whole, ") and first.endswith(", adopted and pinned")
    assert last == "1 generation adopted and pinned, 0 with a problem"
    assert ask(folder, "fsck") == 0
    capsys.readouterr()
    lose(folder)
    assert ask(folder, "adopt") == 2
    assert "fsck --rebuild` makes one from what is there" in lines(capsys)[0]
    assert ask(folder, "fsck", "--rebuild", "--json") == 0
    told = checked("checkpoints_adopt", capsys.readouterr().out)
    assert [(one["generation"]["name"], one["problem"]) for one in told["generations"]] == [
        (name, None) for name in saved
    ]
    assert ask(folder, "list") == 0


def test_a_run_that_is_not_there_is_none_for_both(
    folder: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (ask(folder, "adopt"), ask(folder, "fsck", "--rebuild")) == (2, 2)
    assert all("there is no run 'r'" in line for line in lines(capsys))


def test_what_is_damaged_ends_the_command_with_1(
    folder: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = trained(folder, 10, 20)
    go_back(folder, 2)
    file = f"{GEN}/{saved[1]}/rank-00000.safetensors"
    folder.put(file, folder.get(file)[:-1] + b"?")
    assert ask(folder, "adopt") == 1
    first, last = lines(capsys)
    assert first.startswith(f"{saved[1]}: corrupt: ")
    assert last == "0 generations adopted and pinned, 1 with a problem"


def test_what_is_given_up_while_it_is_read_is_not_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    saved = trained(store, 10, 20)
    go_back(store, 2)
    Repository(store, RUN).take_over("me", what=saved[0])
    tool, whole = refreshed(store), adoption.read_back

    def slowly(repository: Repository, generation: Generation) -> int:
        number = whole(repository, generation)
        refreshed(store).delete_unnamed({generation.name: repository.objects_of(generation.name)})
        return number

    monkeypatch.setattr(adoption, "read_back", slowly)
    assert [one.problem for one in adopt(tool, adoptable(tool))] == ["was given up meanwhile"]
    assert names(tool.refresh().generations) == [saved[0]]


def test_a_driver_at_work_is_fenced_however_many_records_are_gone() -> None:
    store = MemoryStore()
    driver = Repository(store, RUN)
    ranks = Ranks(driver, driver.take_over("me"), retention=TWO)
    for step in range(10, 100, 10):
        ranks.save(step)
    for name in [*store.list(LOG)]:
        store.delete(name)
    list(rebuild(refreshed(store), "a tool"))
    with pytest.raises(Fenced):
        ranks.save(100)
    list(rebuild(refreshed(store), "a tool"))
    assert refreshed(store).view.term == 3


@pytest.mark.parametrize("is_read", [True, False])
def test_what_its_writer_discards_while_a_tool_reads_it_is_neither_adopted_nor_damaged(
    monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """The failed save of an attempt at work, which is whole: its next save discards it."""
    store = MemoryStore()
    *_, failed = trained(store, 10, 20, 30)
    go_back(store, 3)
    tool, writer = refreshed(store), refreshed(store)

    def read_back(repository: Repository, generation: Generation) -> None:
        if is_read:
            audit.read_back(repository, generation)
        assert writer.discard([failed], term=1) == (failed,)
        if not is_read:
            audit.read_back(repository, generation)

    monkeypatch.setattr(adoption, "read_back", read_back)
    (told,) = adopt(tool, adoptable(tool))
    assert (told.problem, told.is_corrupt) == ("was given up meanwhile", False)
    assert refreshed(store).view.generation(failed) is None
