"""What is wrong with a log and its generations is found, what is well is not, and looking changes nothing."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import file_name, manifest_of
from checkpointing.generations.audit import AuditFinding, audit_generations, audit_log, read_back, repair_hint
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.codec import decode, encode
from checkpointing.log.history import Commit, Entry, Pin, Quarantine, Verified
from checkpointing.log.log import Log
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, cut_of, file_of, generation, part_of

pytestmark = pytest.mark.usefixtures("each_form")

HINT = f"runs/{RUN}/hint.json"


class Run:
    """Two attempts with two generations each, of two ranks."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.repository = Repository(self.store, RUN)
        for term in (1, 2):
            assert self.repository.take_over("me") == term
            ranks = Ranks(self.repository, term, world_size=2)
            for number in (1, 2):
                self.newest = ranks.save(20 * term + number)

    def slot(self, number: int) -> str:
        return f"runs/{RUN}/log/{number:012d}.json"

    def file(self, rank: int) -> str:
        return f"runs/{RUN}/gen/{self.newest}/{file_name(rank)}"

    def audit(self) -> list[AuditFinding]:
        repository = Repository(self.store, RUN)
        repository.refresh()
        before = self.content()
        found = [*audit_log(self.store, RUN), *audit_generations(repository)]
        assert self.content() == before
        return found

    def content(self) -> dict[str, bytes]:
        return {name: self.store.get(name) for name in self.store.list("runs")}


def wrong(found: list[AuditFinding]) -> list[str]:
    return [f"{one.place}: {one.says}" for one in found if one.is_wrong]


def test_of_a_run_that_is_well_nothing_is_said() -> None:
    run = Run()
    assert run.audit() == []
    run.repository.append(Pin(name=run.newest))
    run.repository.take_over("me", fresh=True)
    run.repository.append(Quarantine(name=run.newest, reason="poison"))
    assert run.audit() == []


def test_nor_of_a_run_whose_old_generations_were_given_up() -> None:
    run = Run()
    run.repository.retire(Retention(last=1, best=0), term=2)
    assert len(run.repository.view.generations) == 2
    assert run.audit() == []


def test_nor_of_a_save_whose_hint_is_not_there_yet() -> None:
    run = Run()
    cut = cut_of(50, term=2, number=9)
    run.repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    run.repository.commit(manifest_of(cut, [part_of(cut, 0)]), term=2)
    assert run.audit() == []
    run.repository.append(Verified(name=cut.generation), term=2, hint_later=True)
    assert run.audit() == []
    run.repository.retire(Retention(), term=2)
    assert run.audit() == []


def test_a_damaged_record_is_named() -> None:
    run = Run()
    run.store.put(run.slot(3), run.store.get(run.slot(3)).replace(b"number", b"nomber"))
    [found] = wrong(run.audit())
    assert found.startswith("record 3: can't be believed: its bytes are not those")


def test_a_record_that_is_a_copy_of_another_one_is_named() -> None:
    run = Run()
    run.store.put(run.slot(3), run.store.get(run.slot(4)))
    assert wrong(run.audit()) == ["record 3: can't be believed: record 3 of the log is a copy of record 4"]


def test_records_that_are_gone_are_named() -> None:
    run = Run()
    for number in (2, 5, 6, 7):
        run.store.delete(run.slot(number))
    assert wrong(run.audit()) == ["record 2: is gone", "records 5 to 7: are gone"]


def test_a_record_that_does_not_follow_is_named() -> None:
    """As when two writers believed to have created the same number."""
    run = Run()
    other = MemoryStore()
    log = Log(other, RUN)
    log.lease("another")
    log.append(Pin(name=run.newest))
    run.store.put(run.slot(2), other.get(run.slot(2)))
    assert wrong(run.audit()) == [
        "record 2: does not follow from the record before it",
        "record 3: does not follow from the record before it",
    ]


def test_a_term_that_decreases_is_named() -> None:
    run = Run()
    last = max(run.store.list(f"runs/{RUN}/log"))
    number = int(last[-17:-5])
    record = decode(run.store.get(last), number)
    run.store.put(last, encode(replace(record, view=replace(record.view, term=1))))
    assert wrong(run.audit()) == [f"record {number}: is of term 1, the one before it of term 2"]


@pytest.mark.parametrize(
    "hint", [b'{"number": 3}', b'{"number": 3000}', b"damaged", b'{"number": true}', None]
)
def test_a_wrong_hint_is_named_and_mended(hint: bytes | None) -> None:
    run = Run()
    right = run.store.get(HINT)
    if hint is None:
        run.store.delete(HINT)
    else:
        run.store.put(HINT, hint)
    [found] = run.audit()
    assert (found.place, found.is_mendable) == ("hint", True)
    repair_hint(run.store, RUN)
    assert run.audit() == []
    assert json.loads(run.store.get(HINT)) == json.loads(right)


@pytest.mark.parametrize(
    "entries",
    [
        [Pin(name="b")],
        [Commit(generation=generation(1)), Pin(name="b")],
        [Commit(generation=generation(step)) for step in range(1, 10)],
    ],
)
def test_a_hint_before_anything_but_a_few_records_of_saves_is_wrong(entries: list[Entry]) -> None:
    store = MemoryStore()
    log = Log(store, RUN)
    log.append(Pin(name="a"))
    for entry in entries:
        log.append(entry, hint_later=True)
    assert [found.place for found in audit_log(store, RUN)] == ["hint"]


def test_a_hint_of_a_record_that_came_meanwhile_is_right() -> None:
    class Growing(MemoryStore):
        """Shows the log without its newest record, as if that came a moment later."""

        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            names = sorted(super().list(prefix, after=after))
            yield from names[:-1] if prefix.endswith("/log") else names

    store = Growing()
    log = Log(store, RUN)
    log.append(Pin(name="a"))
    log.append(Pin(name="b"))
    assert audit_log(store, RUN) == []


def cut_last_byte(run: Run) -> None:
    run.store.put(run.file(1), run.store.get(run.file(1))[:-1])


def add_a_byte(run: Run) -> None:
    run.store.put(run.file(1), run.store.get(run.file(1)) + b"!")


def empty(run: Run) -> None:
    run.store.put(run.file(1), b"")


def delete(run: Run) -> None:
    run.store.delete(run.file(1))


def exchange_manifest(run: Run) -> None:
    old = run.repository.view.generations[0].name
    data = run.store.get(f"runs/{RUN}/gen/{old}/manifest.json")
    run.store.put(f"runs/{RUN}/gen/{run.newest}/manifest.json", data)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_last_byte, "rank-00001.safetensors is shorter than 31 bytes"),
        (add_a_byte, "rank-00001.safetensors is longer than 31 bytes"),
        (empty, "rank-00001.safetensors is shorter than 31 bytes"),
        (delete, "rank-00001.safetensors is gone"),
        (exchange_manifest, "is not the one that was committed"),
    ],
)
def test_a_file_of_another_size_is_named(damage: Callable[[Run], None], says: str) -> None:
    run = Run()
    damage(run)
    [found] = run.audit()
    assert (found.place, found.is_wrong) == (run.newest, True)
    assert found.says.endswith(says)
    generation = run.repository.view.generation(run.newest)
    assert generation
    with pytest.raises(Corrupt):
        read_back(run.repository, generation)


def test_what_is_quarantined_already_is_only_noted() -> None:
    run = Run()
    delete(run)
    run.repository.quarantine(run.newest, "gone")
    assert [one.is_wrong for one in run.audit()] == [False]


def test_only_reading_back_finds_a_flipped_bit() -> None:
    run = Run()
    damaged = bytearray(run.store.get(run.file(0)))
    damaged[-1] ^= 1
    run.store.put(run.file(0), bytes(damaged))
    assert run.audit() == []
    (*_, before, newest) = run.repository.view.generations
    assert read_back(run.repository, before) == 2
    with pytest.raises(Corrupt):
        read_back(run.repository, newest)


def test_objects_that_no_record_keeps_are_noted_and_not_wrong() -> None:
    run = Run()
    for term in (1, 2):
        cut = cut_of(90, term=term, number=9)
        run.repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    over, other = run.audit()
    assert (over.is_wrong, other.is_wrong) == (False, False)
    assert "t1" in over.says and "gc shows" in over.says
    assert "t2" in other.says


def test_generations_that_no_log_names_are_wrong() -> None:
    run = Run()
    for name in list(run.store.list(f"runs/{RUN}/log")):
        run.store.delete(name)
    run.store.delete(HINT)
    assert wrong(run.audit()) == [
        f"log: names none of 4 generations such as {run.newest}, of which there are objects"
    ]


def test_what_the_run_gives_up_while_it_is_looked_at_is_no_finding() -> None:
    run = Run()
    reader = Repository(run.store, RUN)
    seen = reader.refresh()
    run.repository.retire(Retention(last=1, best=0), term=2)
    assert len(seen.generations) > len(run.repository.view.generations)
    assert audit_generations(reader) == []
