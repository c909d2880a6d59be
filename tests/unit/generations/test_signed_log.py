"""With the store's key, a writer of the store without it can't forge the log; and the key is well kept."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.errors import Corrupt
from checkpointing.generations.audit import audit_log
from checkpointing.log.codec import LogRecord, decode, encode, mac_of, signed
from checkpointing.log.history import Commit, Lease, Pin, Stop, after
from checkpointing.log.log import Log
from checkpointing.log.signing import VARIABLE, Signer, StoreKeyError, StoreKeyFileError, store_key
from checkpointing.log.trust import slot_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.faults import FaultyStore
from tests.unit.small_generations import generation

RUN = "r"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return new_key(tmp_path / "key", monkeypatch, b"k" * 32)


def new_key(path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def started(store: MemoryStore) -> Log:
    log = Log(store, RUN)
    log.lease("a")
    log.append(Commit(generation=generation(1)))
    return log


def forged(store: MemoryStore) -> LogRecord:
    """The next record, as a writer of the store makes it: right in all but its signature."""
    newest = max(store.list(f"runs/{RUN}/log"))
    before = decode(store.get(newest), int(newest[-17:-5]))
    entry = Commit(generation=generation(7))
    view = after(before.view, entry)
    return LogRecord(number=before.number + 1, id="f", written_s=1.0, entry=entry, view=view)


def names(log: Log) -> list[str]:
    return [found.name for found in log.read().generations]


def test_every_record_is_signed_and_read_with_the_key(key: Path) -> None:
    store = MemoryStore()
    started(store)
    assert all(mac_of(store.get(slot_name(RUN, number))) for number in (1, 2))
    assert names(Log(store, RUN)) == [generation(1).name]
    assert audit_log(store, RUN) == []


def test_a_forged_record_commits_nothing_and_is_named(key: Path) -> None:
    store = MemoryStore()
    started(store)
    record = forged(store)
    store.create(slot_name(RUN, record.number), encode(record))

    reader = Log(store, RUN)
    assert names(reader) == [generation(1).name]
    assert reader.view.num_lost == 1
    assert [finding.says for finding in audit_log(store, RUN) if finding.place == "record 3"] == [
        "can't be believed: record 3 of the log is not signed, and one before it is"
    ]


def test_without_a_key_the_same_record_is_believed() -> None:
    store = MemoryStore()
    started(store)
    record = forged(store)
    store.create(slot_name(RUN, record.number), encode(record))
    assert generation(7).name in names(Log(store, RUN))


def test_no_number_of_forged_records_hides_the_signed_ones(key: Path) -> None:
    store = MemoryStore()
    started(store)
    for _ in range(5):
        record = forged(store)
        store.create(slot_name(RUN, record.number), encode(record))
    assert names(Log(store, RUN)) == [generation(1).name]


def test_a_signature_of_another_key_run_or_number_is_none(key: Path) -> None:
    store = MemoryStore()
    started(store)
    record = forged(store)
    data, number = encode(record), record.number
    right = Signer(RUN, b"k" * 32)
    assert right.is_signed(number, right.sign(number, data))
    for signer, at in (
        (Signer(RUN, b"x" * 32), number),
        (Signer("s", b"k" * 32), number),
        (right, number + 1),
    ):
        with pytest.raises(Corrupt, match="not signed with the store's key"):
            right.is_signed(number, signer.sign(at, data))


def test_a_signed_record_with_another_body_is_noticed(key: Path) -> None:
    store = MemoryStore()
    started(store)
    slot = slot_name(RUN, 2)
    record = decode(store.get(slot), 2)
    other = encode(replace(record, entry=Commit(generation=generation(9))))
    store.put(slot, signed(other, mac_of(store.get(slot))))
    assert "not signed with the store's key" in str(audit_log(store, RUN)[0].says)


def test_who_has_no_key_reads_a_signed_log_and_appends_nothing(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    started(store)
    monkeypatch.delenv(VARIABLE)
    log = Log(store, RUN)
    assert names(log) == [generation(1).name]
    with pytest.raises(StoreKeyError, match=f"are signed.*set {VARIABLE}"):
        log.append(Stop())
    assert len(list(store.list(f"runs/{RUN}/log"))) == 2


def test_the_wrong_key_is_said_to_be_wrong_and_nothing_is_called_damaged(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    started(store)
    new_key(tmp_path / "other", monkeypatch, b"x" * 32)
    with pytest.raises(StoreKeyError, match="no record was signed with the key"):
        Log(store, RUN).lease("b", takes_unsigned=True)


def test_a_run_without_a_key_goes_on_with_one_and_is_signed_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    started(store)
    new_key(tmp_path / "key", monkeypatch, b"k" * 32)
    log = Log(store, RUN)
    with pytest.raises(StoreKeyError, match="none of its records is signed"):
        log.lease("b")
    assert log.lease("b", takes_unsigned=True) == 2
    log.append(Pin(name=generation(1).name))

    record = forged(store)
    store.create(slot_name(RUN, record.number), encode(record))

    assert generation(7).name not in names(Log(store, RUN))
    assert [type(one.entry) for one in Log(store, RUN).records()] == [Lease, Commit, Lease, Pin]
    assert [finding.place for finding in audit_log(store, RUN) if finding.is_wrong] == ["record 5", "hint"]


def test_what_was_written_before_the_first_signature_is_believed_also_after_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    started(store)
    new_key(tmp_path / "key", monkeypatch, b"k" * 32)
    Log(store, RUN).lease("b", takes_unsigned=True)
    log = Log(store, RUN)
    log.read()
    assert [record.number for record in log.records()] == [1, 2, 3]


def test_the_first_record_of_all_is_signed_whatever_it_is(key: Path) -> None:
    """Such as a stop request to a run that has not begun."""
    store = MemoryStore()
    Log(store, RUN).append(Stop())
    assert mac_of(store.get(slot_name(RUN, 1)))


def test_a_signed_log_is_appended_to_in_as_few_requests_as_any(key: Path) -> None:
    store = FaultyStore(MemoryStore())
    log = Log(store, RUN)
    log.lease("a")
    store.calls.clear()
    log.append(Stop())
    log.append(Stop())
    assert [call.split()[0] for call in store.calls] == ["create", "put"] * 2


def test_a_writer_that_was_forged_over_is_fenced_and_signs_on(key: Path) -> None:
    store = MemoryStore()
    log = started(store)
    record = forged(store)
    store.create(slot_name(RUN, record.number), encode(record))
    log.append(Stop())  # A tool's: it belongs to no term.
    assert Log(store, RUN).read().stop_asked


def test_a_record_larger_than_any_is_damaged_and_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Log(store, RUN).lease("a")
    Log(store, RUN).append(Stop())
    with (tmp_path / slot_name(RUN, 2)).open("wb") as file:
        file.truncate(40 << 30)  # With holes: it takes no room here, and would take all memory.

    assert Log(store, RUN).read().num_lost == 1
    with pytest.raises(Corrupt, match="42,949,672,960 bytes"):
        Log(store, RUN).record(2)


def test_a_record_without_an_end_that_comes_first_is_stepped_over_and_not_read(tmp_path: Path) -> None:
    log = Log(LocalStore(tmp_path), RUN)
    log.lease("a")
    with (tmp_path / slot_name(RUN, 2)).open("wb") as file:
        file.truncate(40 << 30)  # With holes: it takes no room here, and would take all memory.

    log.append(Stop())
    assert (log.number, log.view.num_lost, log.view.stop_asked) == (3, 1, True)


# The key's file.


def test_without_the_variable_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert store_key() is None


@pytest.mark.parametrize("data", [b"k" * 32, b"k" * 32 + b"\n", b"k" * 4096])
def test_a_key_is_what_the_file_holds_without_its_last_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    new_key(tmp_path / "key", monkeypatch, data)
    assert store_key() == data.strip()


@pytest.mark.parametrize(
    ("data", "mode", "says"),
    [
        (b"k" * 32, 0o640, "has mode 0640"),
        (b"k" * 32, 0o604, "has mode 0604"),
        (b"k" * 31, 0o600, "has 31 bytes; expected 32 to 4096"),
        (b"", 0o600, "has 0 bytes"),
        (b"k" * 5000, 0o600, "has more than 4096 bytes"),
    ],
)
def test_a_file_that_is_no_key_or_badly_kept_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, mode: int, says: str
) -> None:
    new_key(tmp_path / "key", monkeypatch, data, mode)
    with pytest.raises(StoreKeyFileError) as error:
        Log(MemoryStore(), RUN)
    assert says in str(error.value) and "make one with" in str(error.value)
    assert "kkkk" not in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_missing_or_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "gone", tmp_path, tmp_path / "pipe"):
        monkeypatch.setenv(VARIABLE, str(path))
        with pytest.raises(StoreKeyFileError, match=r"is no file|No such|Is a directory") as error:
            store_key()
        assert "make one with" in str(error.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(new_key(tmp_path / "key", monkeypatch, b"k" * 32), 65534, 65534)
    with pytest.raises(StoreKeyFileError, match="owner 65534"):
        store_key()
