"""The parsers, each with good files to start from and the errors by which it refuses others in one line."""

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from shutil import rmtree

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.manifest import (
    IN_PIECES,
    TENSORS,
    Manifest,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
    piece_name,
)
from checkpointing.format.pieces import Encoded, decode_piece, decode_root, decode_table, in_pieces
from checkpointing.format.records import check_records, file_part_of
from checkpointing.log.codec import LogRecord, decode, encode, seal, unseal
from checkpointing.log.folding import Fold, decode_fold, encode_fold
from checkpointing.log.history import Commit
from checkpointing.log.log import read_hint
from checkpointing.stores.contract import StoreError
from checkpointing.stores.memory import MemoryStore
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError
from jobs.commandline.usage_error import SpecError
from jobs.packing.pieces import InputError
from jobs.packing.tokenizing import read_recipe
from jobs.recovery.journal import read_note
from jobs.reports.prices_file import read_prices
from jobs.run_progress.status_file import read_status_file
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.training.data.formats.mds import ids_of, index_of_mds
from jobs.training.data.shard_ledger import LedgerWriter, ledger_of, read_ledger
from jobs.training.models.config_file import read_shape
from jobs.training.models.hugging_face import tensor_shapes
from jobs.training.models.weights import find_weights
from jobs.training.task.presets import preset
from jobs.training.task.token_index import (
    DataError,
    KnownShard,
    TokenIndex,
    TokenShard,
    Vocabulary,
    from_json,
    to_json,
)
from reporting.importers.contents import ImportProblem
from reporting.importers.documents import read_document
from reporting.importers.events import read_events
from reporting.importers.mapping import MappingError, read_mapping, shipped
from reporting.importers.separated import read_separated
from reporting.importers.spreadsheets import read_spreadsheet
from reporting.recording import read_data
from reporting.results.gathering import gather
from reporting.results.publishing import PullError, publish, pull
from reporting.results.records import RecordError, read_record
from tests.unit.builders import measurement, record, run_of, sweep
from tests.unit.fuzzing.child import Parser
from tests.unit.fuzzing.packing import PACKING
from tests.unit.layouts import generation_of, rows, tensors_of
from tests.unit.small_generations import cut_of, generation, good, part_of, view_of

ROOT = Path(__file__).parents[3]
MAPPING = shipped()
MDS = ROOT / "tests/fixtures/mds/beside"


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def written_and_read(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return written_and_read


def as_object(name: str, read: Callable[[MemoryStore], object]) -> Callable[[bytes, Path], object]:
    def put_and_read(data: bytes, _: Path) -> object:
        store = MemoryStore()
        store.put(name, data)
        return read(store)

    return put_and_read


def sealed(read: Callable[[bytes], object], schema: int = 1) -> Callable[[bytes, Path], object]:
    """With the digest made right, as whoever writes the whole object can make it."""

    def sealed_and_read(data: bytes, _: Path) -> object:
        digest = hashlib.sha256(data).hexdigest().encode()
        return read(b'{"schema":%d,"sha256":"%s","body":%s}' % (schema, digest, data))

    return sealed_and_read


def as_weights(data: bytes, folder: Path) -> object:
    """The bytes as the header of a file that has as many others as a good one."""
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + max(end for _, (_, end) in _offsets()))
    return find_weights(path, preset("llama-tiny"))


def header() -> bytes:
    tensors = {
        name: {"dtype": "F32", "shape": tensor_shapes(preset("llama-tiny"))[name], "data_offsets": offsets}
        for name, offsets in _offsets()
    }
    return as_json({"__metadata__": {"format": "pt"}, **tensors})


def _offsets() -> Iterator[tuple[str, tuple[int, int]]]:
    at = 0
    for name, shape in tensor_shapes(preset("llama-tiny")).items():
        size = 4 * prod(shape)
        yield name, (at, at + size)
        at += size


def as_event(data: bytes, _: Path) -> object:
    """The bytes in a record whose checksums are right."""
    return read_events([io.BytesIO(framed(data))], MAPPING)


def framed(data: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    head = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(text)) for text in (head, data)]
    return head + checksums[0] + data + checksums[1]


def as_sheet(data: bytes, _: Path) -> object:
    """The bytes as the only sheet of a workbook that is whole otherwise."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(workbook())) as good, zipfile.ZipFile(packed, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, data if name == "xl/worksheets/sheet1.xml" else good.read(name))
    return read_spreadsheet(packed.getvalue(), MAPPING)


@cache
def workbook() -> bytes:
    from openpyxl import Workbook

    book, packed = Workbook(), io.BytesIO()
    sheet = book.active
    assert sheet is not None
    for row in (["strategy", "world_size", "tokens_per_sec"], ["ddp", 2, 100.5], ["fsdp", 4, "=1+1"]):
        sheet.append(row)
    book.save(packed)
    return packed.getvalue()


def sheet() -> bytes:
    with zipfile.ZipFile(io.BytesIO(workbook())) as good:
        return good.read("xl/worksheets/sheet1.xml")


def event() -> bytes:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    value = Summary.Value(tag="loss", simple_value=2.5)
    data: bytes = Event(step=3, wall_time=1.0, summary=Summary(value=[value])).SerializeToString()
    return data


def result() -> bytes:
    spec = sweep(axes={"strategy": ["ddp"]}, repeats=1)
    run = run_of(spec, 1)
    return record(spec, run, measurement(run.run_id, step_s=0.1)).to_json()


def log_record() -> bytes:
    entry = Commit(generation=generation(2))
    made = LogRecord(number=3, id="i", written_s=1.0, entry=entry, view=view_of(*good(1), entry))
    return as_json(unseal(encode(made)))


def fold() -> bytes:
    made = Fold(number=64, id="i", names=frozenset([generation(1).name]), unread=(7,))
    return as_json(unseal(encode_fold(made, "r")))


def manifest() -> bytes:
    cut = cut_of(10, term=1, number=1)
    return as_json(unseal(encode_manifest(Manifest(cut=cut, parts=(part_of(cut, 0),)))))


@cache
def in_some_pieces() -> Encoded:
    return in_pieces(generation_of(tensors_of(9), rows, 3))


def root() -> bytes:
    return as_json(unseal(in_some_pieces().root, IN_PIECES))


def beside(name: str, data: bytes) -> Encoded:
    """The manifest with ``data`` for the object ``name``, whose size and digest the root names."""
    body = json.loads(root())
    row = body["tensors"] if name == TENSORS else body["pieces"][0]
    at = 0 if name == TENSORS else 2
    row[at : at + 2] = [len(data), hashlib.sha256(data).hexdigest()]
    objects = {**in_some_pieces().objects, name: data}
    return replace(in_some_pieces(), root=seal(body, IN_PIECES), objects=objects)


def as_beside(name: str) -> Callable[[bytes, Path], object]:
    def read(data: bytes, _: Path) -> object:
        encoded = beside(name, data)
        found = decode_root(encoded.root)
        table = decode_table(found, encoded.objects[TENSORS])
        records = decode_piece(found.pieces[0], encoded.objects[piece_name(0)])
        check_records(found.cut, table, records)
        return [file_part_of(table, record) for record in records]

    return read


def part() -> bytes:
    cut = cut_of(10, term=1, number=1)
    return as_json(unseal(encode_part(cut, part_of(cut, 0))))


def mds_file(name: str) -> Callable[[bytes, Path], object]:
    """The bytes as one of the files of a small set that MosaicML Streaming wrote, all of which is read."""

    def put_and_read(data: bytes, _: Path) -> object:
        store = MemoryStore()
        for path in MDS.iterdir():
            store.put(path.name, path.read_bytes())
        store.put(name, data)
        index = index_of_mds(store, store.get("index.json"), "index.json")
        return index and [sum(map(len, ids_of(store, shard))) for shard in index.shards]

    return put_and_read


def token_index() -> bytes:
    vocabulary = Vocabulary(tokenizer="bytes", digest="0" * 64, size=257, begin_ids=(1, 2))
    shard = TokenShard(name="shard-00000.bin", num_tokens=10, sha256="0" * 64, largest_id=256)
    return to_json(TokenIndex(dtype="uint16", shards=(shard,), vocabulary=vocabulary))


def shard_ledger() -> bytes:
    store = MemoryStore()
    shard = KnownShard(name="a", sha256="0" * 64, versions=("1-2-3",))
    LedgerWriter(store, LEDGER, term=1, rank=0).write((shard,))
    return store.get(f"{LEDGER}/000000000001-000000.json")


def data_read() -> bytes:
    documents = read_data.DocumentFacts(
        num_tokens=90,
        num_documents=2,
        longest=60,
        length_bounds=[0, 1],
        length_counts=[2],
        num_compared=2,
        num_copies=0,
        num_padding_tokens=0,
        num_cut=None,
    )
    source = read_data.ReadSource(
        name="web",
        share=0.5,
        num_tokens=90,
        num_samples=9,
        tokenizer="bytes",
        digest="ab",
        documents=documents,
        unread=None,
    )
    return read_data.encode([source, source])


def report_manifest() -> bytes:
    store = MemoryStore()
    publish(store, "a", REPORT)
    return store.get("reports/a/manifest.json")


def as_pulled_report(data: bytes, folder: Path) -> object:
    """The bytes as the manifest of a report that is pulled into a new folder."""
    store = MemoryStore()
    publish(store, "a", REPORT)
    store.put("reports/a/manifest.json", data)
    rmtree(folder / "new", ignore_errors=True)
    # Who opens files in an open folder is seen with their names alone.
    with chdir(folder):
        return pull(store, "a", folder / "new", sleep=lambda _: None)


def as_pulled_folder(data: bytes, folder: Path) -> object:
    """The bytes as the manifest in the folder of a report that is pulled again."""
    store = MemoryStore()
    publish(store, "a", REPORT)
    rmtree(folder / "old", ignore_errors=True)
    with chdir(folder):
        pull(store, "a", folder / "old")
        (folder / "old/manifest.json").write_bytes(data)
        return pull(store, "a", folder / "old", sleep=lambda _: None)


def as_json(found: object) -> bytes:
    return json.dumps(found).encode()


TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "added_tokens": [
        {"id": 0, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
    ],
    "model": {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1, "<unk>": 2}, "unk_token": "<unk>"},
}  # fmt: skip
NOTE = {
    "schema": 1, "term": 1, "how": "failed", "ending": None, "log_tail": ["a"], "skips": [[1, 2]],
    "spoilt": [[1, 5]],
}  # fmt: skip
STATUS = {"schema": 1, "run": "r", "step": 3, "stage": "training", "loss": 2.5, "written_s": 1.0, "term": 1}
CONFIG = sorted((ROOT / "tests/fixtures/config_json/ours").glob("*.json"))
PRICES = b"nvidia: {usd_per_device_hour: 2.5, usd_per_kwh: 0.12}\namd: {usd_per_device_hour: 1.5}\n"
CSV = b"strategy,world_size,tokens_per_sec,mean_loss\nddp,2,100.5,2.0\nfsdp,4,1.5e3,\n"
SPECS = ROOT / "jobs/specs"
LEDGER = ledger_of("r", 1)
REPORT = {"index.html": b"<p>", "charts/a.svg": b"<svg/>"}
MAP = b'[columns]\nmean_loss = ["sadness"]\n[numbers]\ndecimal = ","\n'


def _bytes(*paths: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in paths)


PARSERS: Mapping[str, Parser] = {
    "sweep": Parser(
        read=in_file("spec.yaml", SweepSpec.load),
        refusals=(SpecError,),
        samples=_bytes(SPECS / "sweeps/smoke.yaml"),
    ),
    "run": Parser(
        read=in_file("spec.yaml", RunSpec.load),
        refusals=(SpecError,),
        samples=_bytes(SPECS / "runs/smoke.yaml"),
    ),
    "cluster": Parser(
        read=in_file("cluster.yaml", read_cluster),
        refusals=(ClusterError,),
        samples=_bytes(ROOT / "cluster/mixed.yaml", ROOT / "cluster.yaml"),
    ),
    "prices": Parser(read=in_file("prices.yaml", read_prices), refusals=(SpecError,), samples=(PRICES,)),
    "manifest": Parser(read=sealed(decode_manifest), refusals=(Corrupt,), samples=(manifest(),)),
    "root": Parser(read=sealed(decode_root, IN_PIECES), refusals=(Corrupt,), samples=(root(),)),
    "tensors": Parser(
        read=as_beside(TENSORS), refusals=(Corrupt,), samples=(in_some_pieces().objects[TENSORS],)
    ),
    "piece": Parser(
        read=as_beside(piece_name(0)), refusals=(Corrupt,), samples=(in_some_pieces().objects[piece_name(0)],)
    ),
    "part": Parser(read=sealed(decode_part), refusals=(Corrupt,), samples=(part(),)),
    "record": Parser(read=sealed(lambda data: decode(data, 3)), refusals=(Corrupt,), samples=(log_record(),)),
    "fold": Parser(read=sealed(lambda data: decode_fold(data, "r")), refusals=(Corrupt,), samples=(fold(),)),
    "hint": Parser(
        read=as_object("runs/r/hint.json", lambda store: read_hint(store, "r")),
        refusals=(),
        samples=(b'{"number": 3, "term": 1}',),
    ),
    "note": Parser(
        read=as_object("runs/r/attempts/000000000001.json", lambda store: read_note(store, "r", 1)),
        refusals=(StoreError,),
        samples=(as_json(NOTE),),
    ),
    "status": Parser(
        read=as_object("runs/r/status.json", lambda store: read_status_file(store, "r")),
        refusals=(StoreError,),
        samples=(as_json(STATUS),),
    ),
    "weights": Parser(read=as_weights, refusals=(Unfit,), samples=(header(),)),
    "index": Parser(
        read=lambda data, _: from_json(data, "index.json"), refusals=(DataError,), samples=(token_index(),)
    ),
    "mds": Parser(
        read=mds_file("index.json"), refusals=(DataError,), samples=((MDS / "index.json").read_bytes(),)
    ),
    "mds shard": Parser(
        read=mds_file("shard.00000.mds"),
        refusals=(DataError,),
        samples=((MDS / "shard.00000.mds").read_bytes(),),
    ),
    "result": Parser(read=lambda data, _: read_record(data), refusals=(RecordError,), samples=(result(),)),
    "gathered": Parser(
        read=as_object("sweeps/s/runs/r/result.json", gather),
        refusals=(),
        samples=(result(),),
    ),
    "csv": Parser(
        read=lambda data, _: read_separated(data, MAPPING), refusals=(ImportProblem,), samples=(CSV,)
    ),
    "document": Parser(
        read=lambda data, _: read_document(data, MAPPING),
        refusals=(ImportProblem, RecordError),
        samples=(as_json([{"strategy": "ddp", "tokens_per_sec": 100.5}]),),
    ),
    "mapping": Parser(
        read=lambda data, _: read_mapping(data, "m.toml"), refusals=(MappingError,), samples=(MAP,)
    ),
    "xlsx": Parser(
        read=lambda data, _: read_spreadsheet(data, MAPPING), refusals=(ImportProblem,), samples=(workbook(),)
    ),
    "sheet": Parser(read=as_sheet, refusals=(ImportProblem,), samples=(sheet(),)),
    "events": Parser(
        read=lambda data, _: read_events([io.BytesIO(data)], MAPPING),
        refusals=(ImportProblem,),
        samples=(framed(event()) * 2,),
    ),
    "event": Parser(read=as_event, refusals=(ImportProblem,), samples=(event(),)),
    "tokenizer": Parser(
        read=in_file("tokenizer.json", lambda path: read_recipe(str(path), None)),
        refusals=(InputError,),
        samples=(as_json(TOKENIZER),),
    ),
    "config": Parser(
        read=in_file("config.json", lambda path: read_shape(path.parent)),
        refusals=(Unfit,),
        samples=_bytes(*CONFIG),
    ),
    "ledger": Parser(
        read=as_object(f"{LEDGER}/000000000001-000000.json", lambda store: read_ledger(store, LEDGER, {"a"})),
        refusals=(),
        samples=(shard_ledger(),),
    ),
    "data read": Parser(
        read=lambda data, _: read_data.decode(data), refusals=(ValueError,), samples=(data_read(),)
    ),
    "report": Parser(read=as_pulled_report, refusals=(PullError,), samples=(report_manifest(),)),
    "pulled": Parser(read=as_pulled_folder, refusals=(PullError,), samples=(report_manifest(),)),
    **PACKING,
}
