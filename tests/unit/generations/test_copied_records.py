"""With the store's key, what another store holds of a run of the same name and key counts for nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.format.manifest import MANIFEST
from checkpointing.generations.adoption import adopt, adoptable, rebuild
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import decode, encode, seal, signed
from checkpointing.log.history import Lease, LogView, Stop, after
from checkpointing.log.log import Log, LogRecord
from checkpointing.log.signing import VARIABLE, Signer, StoreKeyError, store_key
from checkpointing.log.trust import slot_name
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from jobs.recovery.journal import AttemptNote, leave_note, read_note
from tests.unit.small_generations import RUN, Ranks, names


@pytest.fixture(autouse=True)
def _key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))


def trained(store: Store, *steps: int) -> list[str]:
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    return [ranks.save(step) for step in steps]


def copy(source: Store, target: Store, prefix: str) -> None:
    for name in source.list(prefix):
        target.put(name, bytes(source.get(name)))


def kept(store: Store) -> list[str]:
    return names(Repository(store, RUN).refresh().generations)


def without_id(store: Store) -> None:
    """The log as versions before this one wrote it."""
    for name in list(store.list(f"runs/{RUN}/log")):
        number = int(name[-17:-5])
        record = replace(decode(bytes(store.get(name)), number), log=None)
        store.put(name, Signer(RUN, store_key()).sign(number, encode(record)))


def test_a_record_of_another_store_with_the_same_run_and_key_is_damage() -> None:
    ours, another = MemoryStore(), MemoryStore()
    (mine,) = trained(ours, 1)
    trained(another, 1, 2, 3)
    for number in range(3, 6):
        ours.put(slot_name(RUN, number), bytes(another.get(slot_name(RUN, number))))

    assert kept(ours) == [mine]


def test_a_copied_record_that_comes_first_ends_the_attempt_and_commits_nothing() -> None:
    ours, another = MemoryStore(), MemoryStore()
    log, other = Log(ours, RUN), Log(another, RUN)
    log.lease("a")
    other.lease("b")
    other.append(Stop())
    ours.put(slot_name(RUN, 2), bytes(another.get(slot_name(RUN, 2))))

    assert log.append(Stop()).num_lost == 1
    assert [record.number for record in Log(ours, RUN).records()] == [1, 3]


def test_a_generation_of_another_store_gets_into_no_log() -> None:
    ours, another = MemoryStore(), MemoryStore()
    (mine,) = trained(ours, 1)
    trained(another, 1, 2)
    copy(another, ours, f"runs/{RUN}/gen")
    repository = Repository(ours, RUN)
    repository.refresh()

    planted = adoptable(repository)
    assert planted
    assert repository.signed_ones(planted) == []
    assert {one.problem for one in adopt(repository, planted)} == {
        "its manifest is not signed with the store's key"
    }
    repository.take_over("me")
    assert kept(ours) == [mine]


def test_a_note_of_another_store_is_none() -> None:
    ours, another = MemoryStore(), MemoryStore()
    for store in (ours, another):
        trained(store, 1)
    leave_note(another, RUN, AttemptNote(term=1, how="given up", given_up="there"))
    copy(another, ours, f"runs/{RUN}/attempts")

    assert read_note(another, RUN, 1) is not None
    assert read_note(ours, RUN, 1) is None


def test_a_generation_that_the_user_names_is_taken_in_whoever_signed_it() -> None:
    ours, another = MemoryStore(), MemoryStore()
    (mine,) = trained(ours, 1)
    trained(another, 1)
    (named,) = trained(another, 2)
    copy(another, ours, f"runs/{RUN}/gen/{named}")
    repository = Repository(ours, RUN)
    repository.refresh()

    assert [one.problem for one in adopt(repository, adoptable(repository), is_named=True)] == [None]
    assert kept(ours) == [mine, named]


def test_a_store_that_was_copied_as_a_whole_is_gone_on_from_with_all_that_it_holds() -> None:
    ours, moved = MemoryStore(), MemoryStore()
    saved = trained(ours, 1, 2)
    leave_note(ours, RUN, AttemptNote(term=1, how="done"))
    copy(ours, moved, "runs")

    assert kept(moved) == saved
    assert read_note(moved, RUN, 1) is not None
    assert kept(moved) + trained(moved, 3) == kept(moved)


def test_a_log_of_an_earlier_version_is_read_and_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    saved = trained(store, 1)
    without_id(store)
    leave_note(store, RUN, AttemptNote(term=1, how="done"))

    saved += trained(store, 2)
    assert kept(store) == saved
    assert {record.log for record in Log(store, RUN).records()} == {None}
    assert read_note(store, RUN, 1) is not None
    monkeypatch.delenv(VARIABLE)
    leave_note(store, RUN, AttemptNote(term=2, how="given up", given_up="planted"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    assert read_note(store, RUN, 2) is None


def test_a_record_without_the_id_is_damage_where_the_first_has_one() -> None:
    store = MemoryStore()
    (saved,) = trained(store, 1)
    view = after(Log(store, RUN).read(), Stop())
    record = LogRecord(number=4, id="o", written_s=1.0, entry=Stop(), view=view)
    store.put(slot_name(RUN, 4), Signer(RUN, store_key()).sign(4, encode(record)))

    assert not Log(store, RUN).read().stop_asked
    assert kept(store) == [saved]


def test_a_log_that_lost_its_first_record_goes_on_with_the_same_id() -> None:
    store = MemoryStore()
    saved = trained(store, 1)
    first = bytes(store.get(slot_name(RUN, 1)))
    store.delete(slot_name(RUN, 1))
    saved += trained(store, 2)
    assert kept(store) == saved

    store.put(slot_name(RUN, 1), first)
    assert kept(store) == saved


def test_who_plants_a_first_record_where_it_is_lost_makes_no_damage_of_the_others() -> None:
    store = MemoryStore()
    saved = trained(store, 1)
    lease = Lease(owner="f")
    planted = LogRecord(number=1, id="f", written_s=1.0, entry=lease, view=after(LogView(), lease), log="f")
    store.put(slot_name(RUN, 1), encode(planted))
    assert kept(store) == saved


def test_a_log_that_begins_after_it_was_looked_at_has_its_id() -> None:
    store = MemoryStore()
    log = Log(store, RUN)
    assert log.log_id() is None
    Log(store, RUN).lease("another")
    assert log.log_id() == log.record(1).id


def test_a_record_of_ours_whose_bytes_were_damaged_is_no_sign_of_another_key() -> None:
    store = MemoryStore()
    Log(store, RUN).lease("a")
    store.put(slot_name(RUN, 1), bytes(store.get(slot_name(RUN, 1))).replace(b'"owner":"a"', b'"owner":"b"'))
    assert Log(store, RUN).read().num_lost == 1


def test_where_a_log_is_gone_what_was_not_signed_for_it_is_not_rebuilt() -> None:
    ours, unsigned = MemoryStore(), MemoryStore()
    saved = trained(ours, 1)
    (planted,) = trained(unsigned, 7)
    manifest = f"runs/{RUN}/gen/{planted}/{MANIFEST}"
    unsigned.put(manifest, signed(bytes(unsigned.get(manifest)), None))
    for name in list(ours.list(f"runs/{RUN}")):
        if "/gen/" not in name:
            ours.delete(name)
    copy(unsigned, ours, f"runs/{RUN}/gen")
    repository = Repository(ours, RUN)
    repository.refresh()

    problems = {one.generation.name: one.problem for one in rebuild(repository, "me")}
    assert problems == {saved[0]: None, planted: "its manifest is not signed with the store's key"}
    assert kept(ours) == saved


def test_a_log_that_is_gone_is_rebuilt_from_what_was_signed_for_it() -> None:
    store = MemoryStore()
    saved = trained(store, 1, 2)
    for name in list(store.list(f"runs/{RUN}")):
        if "/gen/" not in name:
            store.delete(name)
    repository = Repository(store, RUN)
    repository.refresh()

    assert {one.problem for one in rebuild(repository, "me")} == {None}
    assert kept(store) == saved


def lose_all_but_saves(store: Store, *, keeps_hint: bool = False) -> None:
    for name in list(store.list(f"runs/{RUN}")):
        if "/gen/" not in name and not (keeps_hint and name.endswith("/hint.json")):
            store.delete(name)


def refreshed(store: Store) -> Repository:
    repository = Repository(store, RUN)
    repository.refresh()
    return repository


@pytest.mark.parametrize("num_adopted", [0, 1, 2])
@pytest.mark.parametrize("num_cuts", [1, 2])
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("keeps_hint", [True, False])
def test_a_rebuild_that_was_cut_off_goes_on_when_it_is_begun_again(
    num_adopted: int, num_cuts: int, has_key: bool, keeps_hint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_key:
        monkeypatch.delenv(VARIABLE)
    store = MemoryStore()
    saved = trained(store, 1, 2, 3)
    lose_all_but_saves(store, keeps_hint=keeps_hint)
    for _ in range(num_cuts):
        cut_off(store, num_adopted if num_cuts == 1 else 0)

    assert {one.problem for one in rebuild(refreshed(store), "a host")} == {None}
    assert kept(store) == saved


def test_a_rebuild_that_was_cut_off_takes_in_no_more_than_the_first_would_have() -> None:
    store, unsigned = MemoryStore(), MemoryStore()
    saved = trained(store, 1)
    (planted,) = trained(unsigned, 7)
    manifest = f"runs/{RUN}/gen/{planted}/{MANIFEST}"
    unsigned.put(manifest, signed(bytes(unsigned.get(manifest)), None))
    lose_all_but_saves(store)
    cut_off(store, 1)
    copy(unsigned, store, f"runs/{RUN}/gen")
    list(rebuild(refreshed(store), "a host"))
    assert kept(store) == saved


def test_once_a_run_has_gone_on_a_rebuild_takes_in_nothing_of_another_log() -> None:
    store, another = MemoryStore(), MemoryStore()
    saved = trained(store, 1)
    trained(another, 1)
    (planted,) = trained(another, 7)
    lose_all_but_saves(store)
    list(rebuild(refreshed(store), "a host"))
    saved += trained(store, 2)
    copy(another, store, f"runs/{RUN}/gen/{planted}")
    list(rebuild(refreshed(store), "a host"))
    assert kept(store) == saved


def test_a_rebuild_signs_no_log_that_nobody_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would take what somebody planted for the run's."""
    store = MemoryStore()
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        trained(store, 7)
    before = list(store.list(f"runs/{RUN}/log"))
    with pytest.raises(StoreKeyError, match="none of its records is signed"):
        list(rebuild(refreshed(store), "a host"))
    assert list(store.list(f"runs/{RUN}/log")) == before


def cut_off(store: Store, num_adopted: int) -> None:
    """A rebuild that ends after its lease, and after so many generations."""
    repository = refreshed(store)
    if num_adopted:
        adoptions = rebuild(repository, "a host")
        for _ in range(num_adopted):
            next(adoptions)
    else:
        repository.lease("fsck --rebuild on a host")


def test_the_id_stands_in_what_the_key_signs_and_is_that_of_the_first_record() -> None:
    store = MemoryStore()
    (saved,) = trained(store, 1)
    log = Log(store, RUN)
    log.read()
    assert {record.log for record in log.records()} == {log.record(1).id} == {log.log_id()}
    manifest = json.loads(bytes(store.get(f"runs/{RUN}/gen/{saved}/{MANIFEST}")))
    assert manifest["body"]["log"] == log.log_id()


@pytest.mark.parametrize("mac", [None, "f" * 64])
def test_a_record_that_the_key_did_not_sign_is_not_decoded(
    mac: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    (saved,) = trained(store, 1)
    store.put(slot_name(RUN, 4), signed(seal({"number": 4, "entry": [0] * 1000}), mac))
    decoded: list[int] = []

    def noting(data: bytes, number: int) -> LogRecord:
        decoded.append(number)
        return decode(data, number)

    monkeypatch.setattr("checkpointing.log.trust.decode", noting)
    assert kept(store) == [saved]
    assert 3 in decoded
    assert 4 not in decoded


def test_without_the_key_a_log_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    store = MemoryStore()
    trained(store, 1)
    assert b'"log":' not in bytes(store.get(slot_name(RUN, 1)))
    lease = Lease(owner="a")
    record = LogRecord(number=1, id="i", written_s=1.0, entry=lease, view=after(LogView(), lease), log="i")
    assert decode(encode(record), 1) == record
