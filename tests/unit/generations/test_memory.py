"""What a stranger writes into the log, or into a manifest, fills no command's memory."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import get_ident

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import (
    IN_PIECES,
    MANIFEST,
    TensorInfo,
    TooLargeToRead,
    decode_manifest,
    encode_manifest,
    manifest_of,
)
from checkpointing.format.pieces import decode_root, decode_table, in_pieces
from checkpointing.generations.audit import audit_log
from checkpointing.generations.repository import Repository
from checkpointing.log.bounded_json import parsed
from checkpointing.log.codec import LogRecord, sealed_text
from checkpointing.log.history import Commit
from checkpointing.log.log import Log
from checkpointing.log.trust import slot_name
from checkpointing.stores import bounded
from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, cut_of, file_of, generation, part_of

ROOT = Path(__file__).parents[3]
NUM_BYTES = 60_000_000
# The memory is what the fuzzed parsers may take too. On the first store, what is imported late is loaded.
COMMANDS = """
import sys
from jobs.cli.__main__ import main
from tests.unit.fuzzing.child import MEMORY_BYTES, bound_memory

good, planted, *commands = sys.argv[1:]
for store in (good, planted):
    if store == planted:
        bound_memory(MEMORY_BYTES)
    for command in commands:
        code = main(["checkpoints", *command.split(), "--store", store, "--run", "r"])
        print(f"{command}: {code}", flush=True)
"""


def dense(_: int) -> bytes:
    """Each byte takes most memory."""
    return b'{"x":[%s0]}' % (b"[[]]," * (NUM_BYTES // 5))


def tight(num_values: int) -> bytes:
    """As many values as are parsed, and those that take most, within as many bytes."""
    values = b'{"a":1},' * (num_values // 3 - 9)
    return b'{"x":[%s0],"y":"%s"}' % (values, b"z" * (NUM_BYTES - len(values) - 90))


def sealed(body: bytes) -> bytes:
    return b'{"schema":1,"sha256":"%s","body":%s}' % (hashlib.sha256(body).hexdigest().encode(), body)


def trained(store: Store) -> str:
    repository = Repository(store, RUN)
    return Ranks(repository, repository.take_over("me")).save(10)


def leave(store: Store, number: int, root: bytes) -> str:
    """A generation of term 1 that is whole but for its manifest."""
    cut = cut_of(10 * number, term=1, number=number)
    repository = Repository(store, RUN)
    repository.put_file(cut.generation, part_of(cut, 0).file, file_of(cut, 0))
    repository.put_file(cut.generation, MANIFEST, root)
    return cut.generation


def filled(store: Store, planted: bytes) -> str:
    """A run with a good checkpoint. What is planted: a manifest that a record names, one that none does, and
    the newest record. Returns the name of the first.
    """
    trained(store)
    named = leave(store, 8, planted)
    digest = hashlib.sha256(planted).hexdigest()
    Log(store, RUN).append(Commit(generation=generation(8, name=named, manifest_digest=digest)))
    leave(store, 9, planted)
    store.put(slot_name(RUN, 5), planted)
    return named


CODES = {"list": 0, "adopt": 0, "fsck --rebuild": 0, "show NAME": 1, "verify NAME": 1, "fsck": 1}


@pytest.mark.parametrize(("made", "verbs"), [(dense, list(CODES)), (tight, ["list", "adopt"])])
def test_records_and_manifests_of_60_mb_fill_no_commands_memory(
    made: Callable[[int], bytes], verbs: Sequence[str], tmp_path: Path
) -> None:
    named = filled(LocalStore(tmp_path / "good"), b"{}")
    filled(LocalStore(tmp_path / "planted"), sealed(made(NUM_BYTES // 8)))
    codes = {verb.replace("NAME", named): CODES[verb] for verb in verbs}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(tmp_path / "good"), str(tmp_path / "planted"), *codes],
        cwd=ROOT,
        # Otherwise each thread takes addresses for memory that it does not need.
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    ends = [line for line in done.stdout.splitlines() if line.rpartition(": ")[0] in codes]
    assert ends == [f"{command}: {code}" for command, code in codes.items()] * 2, done.stdout + done.stderr


@pytest.mark.parametrize("text", [b"[[1, 2], 3]", b'{"a": {"b": null}}'])
def test_the_values_are_counted_and_none_is_missed(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    num_values = len(re.findall(rb'"[^"]*"|[0-9]+|null|[\[{]', text))
    monkeypatch.setattr(bounded, "_LEAST_BYTES_PER_VALUE", 10**9)
    monkeypatch.setattr(bounded, "_ANY_VALUES", num_values - 1)
    assert parsed(text) == json.loads(text)
    monkeypatch.setattr(bounded, "_ANY_VALUES", num_values - 2)
    with pytest.raises(ValueError, match=rf"holds {num_values - 1} keys and values in {len(text)} bytes"):
        parsed(text)


def test_text_beyond_ascii_which_takes_four_bytes_of_memory_for_each_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="is not JSON in ASCII"):
        parsed('{"a": "😀"}'.encode())


def num_marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b":", b"[", b"{")))


def most_values(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(bounded, "_LEAST_BYTES_PER_VALUE", 10**9)
    monkeypatch.setattr(bounded, "_ANY_VALUES", count)


def test_a_manifest_that_no_reader_would_parse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = cut_of(10, term=1, number=1)
    empty = tuple(TensorInfo(name=f"param/{number}", dtype="F32", shape=(0,)) for number in range(100))
    parts = [part_of(cut, rank) for rank in range(cut.world_size)]
    whole = manifest_of(cut, [replace(part, tensors=(*part.tensors, *empty)) for part in parts])
    data, split = encode_manifest(whole), in_pieces(whole)
    most = num_marks(sealed_text(data))
    most_values(monkeypatch, most)
    assert decode_manifest(encode_manifest(whole)) == whole
    most_values(monkeypatch, most - 1)
    with pytest.raises(TooLargeToRead, match=rf"has {most} keys and values .* in tensors"):
        encode_manifest(whole)
    with pytest.raises(Corrupt, match="keys and values"):
        decode_manifest(data)

    counts = {name: num_marks(one) for name, one in split.objects.items()}
    counts["root"] = num_marks(sealed_text(split.root, IN_PIECES))
    most_values(monkeypatch, max(counts.values()))
    assert in_pieces(whole) == split
    for count in counts.values():
        most_values(monkeypatch, count - 1)
        with pytest.raises(TooLargeToRead):
            in_pieces(whole)
    most_values(monkeypatch, counts["tensors.json"] - 1)
    assert max(counts, key=lambda name: counts[name]) == "tensors.json"
    with pytest.raises(Corrupt, match=r"tensors\.json holds .* keys and values"):
        decode_table(decode_root(split.root), split.objects["tensors.json"])


def test_a_record_that_no_reader_would_parse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    log = Log(store, RUN)
    log.lease("me")
    before = list(store.list(f"runs/{RUN}/log"))
    most_values(monkeypatch, 30)
    with pytest.raises(StoreError, match=r"next record would have \d+ keys and values in .*let fewer saves"):
        log.append(Commit(generation=generation(1)))
    assert list(store.list(f"runs/{RUN}/log")) == before


def test_a_manifest_with_more_metrics_than_a_log_should_repeat_is_refused() -> None:
    for metrics in ({f"m{number}": 1.0 for number in range(10_001)}, {"m" * 1_000_001: 1.0}):
        cut = replace(cut_of(10, term=1, number=1), metrics=metrics)
        with pytest.raises(Corrupt, match=r"claims \d+ metrics"):
            manifest_of(cut, [part_of(cut, rank) for rank in range(cut.world_size)])


def test_an_audit_reads_large_records_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    saved = trained(store)
    monkeypatch.setattr("checkpointing.log.log._MOST_SMALL_BYTES", store.size(slot_name(RUN, 1)))
    log, at_once = Log(store, RUN), Counter[int]()
    assert [log.small_record(number) is None for number in (1, 2)] == [False, True]
    read = Log.record

    def reading(self: Log, number: int) -> LogRecord:
        at_once[get_ident()] += 1
        return read(self, number)

    monkeypatch.setattr(Log, "record", reading)
    assert audit_log(store, RUN) == []
    assert at_once == {get_ident(): 2}
    assert [one.name for one in log.read().generations] == [saved]
