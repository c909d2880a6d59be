"""A signature that was made up stops nobody, and what nobody signed gets into no signed log."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.errors import Fenced, NothingToResume
from checkpointing.format.manifest import MANIFEST, encode_manifest, manifest_of
from checkpointing.generations import manifests, unnamed
from checkpointing.generations.adoption import adopt, adoptable
from checkpointing.generations.audit import audit_log
from checkpointing.generations.choice import choose
from checkpointing.generations.manifests import Summary, summary_of
from checkpointing.generations.repository import Repository
from checkpointing.log import codec
from checkpointing.log.codec import LogRecord, decode, encode, mac_of, signed
from checkpointing.log.history import Commit, Entry, Lease, LogView, Pin, Stop, after
from checkpointing.log.log import Log, numbers_in
from checkpointing.log.signing import VARIABLE, Signer, StoreKeyError
from checkpointing.log.trust import slot_name
from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from tests.unit.small_generations import RUN, Ranks, cut_of, file_of, generation, names, part_of

pytestmark = pytest.mark.usefixtures("each_form")

KEYS = {"ours": b"k" * 32, "another": b"x" * 32}
PLANTED = Commit(generation=generation(7))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv(VARIABLE, raising=False)
    return LocalStore(tmp_path / "store")


def with_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str = "ours") -> None:
    path = tmp_path / whose
    path.write_bytes(KEYS[whose])
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))


def trained(store: Store, *steps: int, what: str = "latest", fresh: bool = False) -> list[str]:
    """One attempt, which is killed after its last save."""
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me", what=what, fresh=fresh))
    return [ranks.save(step) for step in steps]


def numbers(store: Store) -> list[int]:
    return sorted(numbers_in(store.list(f"runs/{RUN}/log")))


def forge(store: Store, entry: Entry = PLANTED, *, mac: str | None = "f" * 64) -> int:
    """Appends a record as a writer of the store does who has no key: all of it is right but the signature."""
    number = max(numbers(store), default=0) + 1
    view = decode(store.get(slot_name(RUN, number - 1)), number - 1).view if number > 1 else LogView()
    record = LogRecord(number=number, id="f", written_s=1.0, entry=entry, view=after(view, entry))
    store.create(slot_name(RUN, number), signed(encode(record), mac))
    return number


def leave(
    store: Store, step: int, *, term: int, number: int, mac: str | None = None, told_term: int | None = None
) -> str:
    """A whole generation that nobody committed, of the next number in its term."""
    cut = cut_of(step, term=term, number=number)
    cut = replace(cut, term=told_term or term)
    repository = Repository(store, RUN)
    repository.put_file(cut.generation, part_of(cut, 0).file, file_of(cut, 0))
    manifest = encode_manifest(manifest_of(cut, [part_of(cut, 0)]))
    repository.put_file(cut.generation, MANIFEST, signed(manifest, mac))
    return cut.generation


def lose_records(store: Store, count: int) -> None:
    """The newest records are gone, and the hint is as old as the log."""
    for number in numbers(store)[-count:]:
        store.delete(slot_name(RUN, number))
    store.put(f"runs/{RUN}/hint.json", json.dumps({"number": max(numbers(store)), "term": 1}).encode())


def kept(store: Store) -> list[str]:
    return names(Repository(store, RUN).refresh().generations)


# A forged signature in a log that nobody signed.


@pytest.mark.parametrize("entry", [PLANTED, Lease(owner="f"), Stop()])
def test_with_a_key_a_forged_signature_is_a_damaged_record_and_the_run_goes_on(
    store: Store, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trained(store, 10, 20)
    number = forge(store, entry)
    with_key(tmp_path, monkeypatch)

    assert kept(store) == saved
    assert trained(store, 30, what=saved[0])[0] in kept(store)
    assert trained(store, 40)[0] in kept(store)
    assert [one.says for one in audit_log(store, RUN) if one.place == f"record {number}"] == [
        f"can't be believed: record {number} of the log is not signed with the store's key"
    ]


@pytest.mark.parametrize("entry", [PLANTED, Stop(), Pin(name="x")])
def test_without_a_key_a_forged_signature_on_another_record_than_a_lease_stops_nobody(
    store: Store, entry: Entry
) -> None:
    trained(store, 10)
    forge(store, entry)
    assert trained(store, 20)[0] in kept(store)


def test_without_a_key_a_forged_lease_is_refused_with_the_way_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trained(store, 10)
    number = forge(store, Lease(owner="f"))
    with pytest.raises(StoreKeyError, match=rf"signed from record {number} on.*if none of you ever had one"):
        trained(store, 20)

    with_key(tmp_path, monkeypatch)
    trained(store, 20, what=saved[0])
    assert kept(store)[:1] == saved and len(kept(store)) == 2


def test_a_first_record_with_a_forged_signature_is_named_and_not_called_damaged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(store, Lease(owner="f"))
    with pytest.raises(StoreKeyError, match="signed from record 1 on"):
        trained(store, 10)
    with_key(tmp_path, monkeypatch)
    with pytest.raises(StoreKeyError, match=r"if none of that name ever began, .* another name"):
        trained(store, 10)


# A log that somebody planted under a name whose run never began.


@pytest.mark.parametrize("is_first_forged", [False, True])
def test_with_a_key_no_start_goes_on_from_a_planted_log_and_one_line_says_what_to_do(
    store: Store, is_first_forged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_first_forged:
        forge(store, Lease(owner="f"))
    planted = leave(store, 70, term=1, number=1)
    forge(store, Lease(owner="f"), mac=None)
    forge(store, Commit(generation=generation(7, name=planted)), mac=None)
    before = numbers(store)

    with_key(tmp_path, monkeypatch)
    for what in ("latest", "backup", "best", "step:70"):
        with pytest.raises(
            StoreKeyError, match=r"none of its records is signed .*--resume NAME.*--fresh"
        ) as no:
            trained(store, 10, what=what)
        assert "\n" not in str(no.value) and "give the run another name" in str(no.value)
    assert numbers(store) == before


def test_a_log_that_is_planted_while_a_start_begins_is_not_gone_on_from(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    repository = Repository(store, RUN)
    planted, create = iter([PLANTED]), store.create

    def create_late(name: str, data: bytes) -> None:
        for entry in planted:
            forge(store, entry, mac=None)
        create(name, data)

    monkeypatch.setattr(store, "create", create_late)
    with pytest.raises(StoreKeyError, match="none of its records is signed"):
        repository.take_over("me")
    assert len(numbers(store)) == 1


def test_who_begins_anew_beside_a_planted_log_resumes_nothing_of_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(store, Lease(owner="f"), mac=None)
    forge(store, PLANTED, mac=None)
    with_key(tmp_path, monkeypatch)
    trained(store, fresh=True)
    assert choose(Repository(store, RUN).refresh()).chosen is None
    saved = trained(store, 10)
    chosen = choose(Repository(store, RUN).refresh()).chosen
    assert chosen and chosen.name == saved[0]


def test_nothing_comes_between_the_lease_that_signs_a_planted_log_and_the_life_that_it_begins(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill there, or another's record, would leave a signed log whose newest checkpoint was planted."""
    forge(store, Lease(owner="f"), mac=None)
    planted = leave(store, 70, term=1, number=1)
    forge(store, Commit(generation=generation(7, name=planted)), mac=None)
    with_key(tmp_path, monkeypatch)
    create, junk = store.create, slot_name(RUN, 4)

    def create_and_be_followed(name: str, data: bytes) -> None:
        create(name, data)
        if name == slot_name(RUN, 3):
            store.put(junk, b"junk")

    monkeypatch.setattr(store, "create", create_and_be_followed)
    with suppress(Fenced):
        trained(store, fresh=True)
    view = Repository(store, RUN).refresh()
    assert view.num_lost == 1
    assert choose(view).chosen is None
    trained(store)
    assert choose(Repository(store, RUN).refresh()).chosen is None


def test_planted_junk_takes_no_name_from_who_has_a_key(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(slot_name(RUN, 1), b"junk")
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    assert kept(store) == saved
    assert trained(store, 20)[0] in kept(store)


# No downgrade.


def test_a_log_that_is_signed_stays_signed_behind_any_number_of_forged_signatures(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    for entry in (PLANTED, Lease(owner="f"), PLANTED):
        forge(store, entry)
        forge(store, entry, mac=None)
    assert kept(store) == saved
    assert trained(store, 20)[0] in kept(store)
    assert generation(7).name not in kept(store)


def test_a_log_signed_with_another_key_is_refused_as_before(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch, "another")
    trained(store, 10)
    with_key(tmp_path, monkeypatch)
    with pytest.raises(StoreKeyError, match="no record was signed with the key"):
        trained(store, 20)


def test_a_record_of_another_key_behind_ours_is_damage_and_the_run_goes_on_with_ours(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    number = max(numbers(store)) + 1
    view = after(decode(store.get(slot_name(RUN, number - 1)), number - 1).view, PLANTED)
    record = encode(LogRecord(number=number, id="x", written_s=1.0, entry=PLANTED, view=view))
    store.create(slot_name(RUN, number), Signer(RUN, KEYS["another"]).sign(number, record))

    assert kept(store) == saved
    assert trained(store, 20)[0] in kept(store)
    assert PLANTED.generation.name not in kept(store)
    assert f"record {number}" in [one.place for one in audit_log(store, RUN)]


def test_without_a_key_nobody_appends_behind_any_record_of_a_signed_log(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trained(store, 10)
    with_key(tmp_path, monkeypatch)
    trained(store, 20, 30, what=saved[0])
    monkeypatch.delenv(VARIABLE)
    for _ in range(len(numbers(store)) - 4):
        log = Log(store, RUN)
        log.read()
        with pytest.raises(StoreKeyError, match="its records are signed"):
            log.append(Stop())
        lose_records(store, 1)


def test_a_tool_with_a_key_signs_nothing_in_a_log_that_no_key_began(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all that the run without a key saves from there on would be lost to who has one."""
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    first = ranks.save(10)
    with_key(tmp_path, monkeypatch)
    tool = Repository(store, RUN)
    tool.refresh()
    tool.append(Pin(name=first))
    assert mac_of(store.get(slot_name(RUN, max(numbers(store))))) is None
    second = ranks.save(20)
    assert kept(store) == [first, second]

    Repository(store, RUN).take_over("now with a key", what=second)
    tool.refresh()
    tool.append(Stop())
    assert all(mac_of(store.get(slot_name(RUN, number))) for number in numbers(store)[-2:])


# Whole generations beside the log.


def test_a_generation_that_a_stranger_planted_is_taken_into_no_signed_log(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    planted = [leave(store, 20, term=1, number=8), leave(store, 30, term=1, number=9, mac="f" * 64)]

    repository = Repository(store, RUN)
    repository.take_over("me")
    assert names(repository.view.generations) == saved
    assert (repository.surplus.adopted, names(repository.surplus.kept)) == ((), planted)
    assert [one.problem for one in adopt(repository, adoptable(repository))] == [
        "its manifest is not signed with the store's key"
    ] * 2


@pytest.mark.parametrize("mac", [None, "f" * 64])
def test_a_large_manifest_that_the_key_did_not_sign_is_parsed_by_no_start_unless_it_is_named(
    mac: str | None, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    planted = leave(store, 20, term=1, number=8, mac=mac)
    name = f"runs/{RUN}/gen/{planted}/{MANIFEST}"
    num_bytes = store.size(name)
    parsed: list[int] = []

    def noting(data: bytes) -> Summary:
        parsed.append(len(data))
        return summary_of(data)

    monkeypatch.setattr(unnamed, "summary_of", noting)
    monkeypatch.setattr(unnamed, "_MOST_UNSIGNED_BYTES", num_bytes - 1)
    trained(store)
    assert (parsed, kept(store)) == ([], saved)
    trained(store, what=planted)
    assert (set(parsed), kept(store)) == ({num_bytes}, [*saved, planted])


def test_an_unsigned_manifest_is_not_parsed_to_see_that_it_is_of_this_log(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    trained(store, 10)
    planted = leave(store, 20, term=1, number=8)
    repository = Repository(store, RUN)
    repository.refresh()
    (found,) = repository.unnamed()
    assert found.name == planted
    parsed: list[bytes] = []
    monkeypatch.setattr(manifests, "unseal", lambda data, schema: parsed.append(data) or {})
    assert (repository.signed_ones([found]), parsed) == ([], [])


def test_records_that_seem_lost_and_a_planted_generation_refuse_no_start_of_a_signed_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    store.put(f"runs/{RUN}/hint.json", json.dumps({"number": 99, "term": 3}).encode())
    leave(store, 30, term=2, number=9)
    trained(store, 20)
    assert kept(store)[:1] == saved and len(kept(store)) == 2


def test_a_save_that_was_killed_before_its_commit_is_committed_by_the_next_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10, 20)
    while kept(store)[-1] == saved[-1]:
        lose_records(store, 1)
    trained(store)
    assert kept(store) == saved


def test_the_signature_of_a_manifest_holds_for_its_run_and_generation_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10)
    manifest = store.get(f"runs/{RUN}/gen/{saved[0]}/{MANIFEST}")
    mac = mac_of(manifest)
    assert mac
    leave(store, 20, term=1, number=9, mac=mac)
    trained(store)
    assert kept(store) == saved


def test_what_was_saved_before_there_was_a_key_is_taken_in_by_a_first_start_that_names_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trained(store, 10)
    left = leave(store, 20, term=1, number=9)
    with_key(tmp_path, monkeypatch)
    trained(store, what=left)
    assert kept(store) == [*saved, left]


def test_a_manifest_that_was_exchanged_or_is_gone_is_not_signed_by_us(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    trained(store, 10)
    repository = Repository(store, RUN)
    (kept,) = repository.refresh().generations
    place = f"runs/{RUN}/gen/{kept.name}/{MANIFEST}"
    assert repository.signed_ones([kept]) == [kept]
    store.put(place, store.get(place)[:-1])
    assert repository.signed_ones([kept]) == []
    store.delete(place)
    assert repository.signed_ones([kept]) == []


# Terms that somebody planted.


@pytest.mark.parametrize("higher", [1, 10**6])
def test_with_a_key_a_planted_generation_of_a_higher_term_is_told_and_never_chosen(
    higher: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name raises the term, as that of a save whose lease is lost must; no record of ours is refused."""
    with_key(tmp_path, monkeypatch)
    saved = trained(store, 10, 20)
    planted = leave(store, 30, term=1 + higher, number=9)
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 2 + higher
    assert names(repository.surplus.kept) == [planted]
    chosen = choose(repository.view).chosen
    assert chosen and chosen.name == saved[-1]
    saved += trained(store, 40)
    assert kept(store) == saved
    assert planted in Repository(store, RUN).stored_generations()


@pytest.mark.parametrize("higher", [1, 10**6])
def test_without_a_key_a_planted_generation_of_a_higher_term_is_told_and_the_run_goes_on_from_a_named_one(
    higher: int, store: Store
) -> None:
    saved = trained(store, 10, 20)
    planted = leave(store, 30, term=1 + higher, number=9)
    with pytest.raises(NothingToResume, match=rf"does not name {planted}.*--resume NAME.*--fresh"):
        trained(store)
    assert kept(store) == saved
    saved += trained(store, 25, what=saved[-1])
    assert kept(store) == saved
    chosen = choose(Repository(store, RUN).refresh()).chosen
    assert chosen and chosen.name == saved[-1]
    saved += trained(store, 40)
    assert kept(store) == saved


@pytest.mark.parametrize("term", [2**62, 2])
def test_a_generation_whose_manifest_tells_another_term_than_its_name_is_no_whole_one(
    term: int, store: Store
) -> None:
    """Taken into the log by ``adopt``, it would be newer than all that the run saves from there on."""
    trained(store, 10)
    planted = leave(store, 30, term=1, number=9, told_term=term)
    repository = Repository(store, RUN)
    repository.refresh()
    assert (repository.unnamed(), adoptable(repository)) == ([], [])
    assert planted in repository.stored_generations()


@pytest.mark.parametrize("term", [10**12, 2**62])
def test_a_record_of_a_generation_with_a_term_that_no_name_has_room_for_is_damage(
    term: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = trained(store, 10)
    entry = Commit(generation=generation(7, term=term))
    with pytest.raises(ValueError, match=f"a generation of term {term} in record"):
        forge(store, entry, mac=None)
    with monkeypatch.context() as without:
        without.setattr(codec, "MOST_NAMED_TERM", 2**63)
        number = forge(store, entry, mac=None)
    assert kept(store) == saved
    store.delete(slot_name(RUN, number))
    largest = generation(7, term=10**12 - 1)
    forge(store, Commit(generation=largest), mac=None)
    assert kept(store) == [*saved, largest.name]
