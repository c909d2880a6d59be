"""Shards that are flipped, cut, lengthened, exchanged or replaced: no rank is given a sample of such bytes.

A trial reads as a training does, up to two epochs. Somewhere before or between its steps one thing happens to
the shards, in a folder, in a bucket, or to their copies on the node. From then on each step has the samples
of the definition, or ends the attempt with the shard's name.

Shards are what ``pack`` writes, or Parquet and MDS files, which ranks decode. What nothing tells the digest
of is harmed before an attempt only if an earlier one has read it: before that, nobody knows other bytes.
"""

import hashlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from random import Random, SystemRandom

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.versions import versions_of
from jobs.training.data.formats.mds import index_of_mds
from jobs.training.data.formats.parquet_tokens import describe
from jobs.training.data.samples import Samples
from jobs.training.data.shard_ledger import ledger_of, read_ledger
from jobs.training.task.sample_order import sample_at
from jobs.training.task.task import ShardCacheLimits, Tokens
from jobs.training.task.token_index import INDEX, DataError, TokenIndex, TokenShard, to_json
from jobs.training.task.windows import cut_into_windows
from tests.live import servers
from tests.live.forked_command import run_forked
from tests.live.servers import BUCKET, HOST, S3_KEYS
from tests.live.tokens.test_samples import NUM_HELD_OUT, WORLDS, World, samples_of, step_of
from tests.live.tokens.test_token_runs import train_command
from tests.unit.clock_ticks import let_the_clock_tick
from tests.unit.seeds import SEED
from tests.unit.tokens.test_mds import mds_shard

SEQ_LEN, STEP, NUM_SHARDS, SHARD_TOKENS = 32, 8, 4, 400
PLACES = ("folder", "copies of a folder", "bucket", "copies of a bucket")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Files of ids. Ranks read decoded ones only as copies on their node."""

    suffix: str
    shard_of: Callable[[list[int]], bytes]
    index_of: Callable[[Store, "Kind", Random], TokenIndex]
    is_decoded: bool = True

    @property
    def names(self) -> list[str]:
        return [f"{number}.{self.suffix}" for number in range(NUM_SHARDS)]


def raw(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}H", *ids)


def index_of_raw(store: Store, kind: Kind, _: Random) -> TokenIndex:
    digests = {name: hashlib.sha256(store.get(name)).hexdigest() for name in kind.names}
    shards = (TokenShard(name=name, num_tokens=SHARD_TOKENS, sha256=digests[name]) for name in kind.names)
    return TokenIndex(dtype="uint16", shards=tuple(shards))


def parquet(ids: list[int]) -> bytes:
    sink = BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": ids}), sink, row_group_size=150)
    return sink.getvalue()


def index_of_parquet(store: Store, kind: Kind, _: Random) -> TokenIndex:
    return TokenIndex(dtype="uint32", shards=tuple(describe(store, name) for name in kind.names))


def mds(ids: list[int]) -> bytes:
    """Of 16 samples, whose kind nothing tells."""
    data, size = struct.pack(f"<{len(ids)}i", *ids), 4 * len(ids) // 16
    samples = [struct.pack("<I", size) + data[first : first + size] for first in range(0, len(data), size)]
    return mds_shard([(size + 4) * number for number in range(17)], {"tokens": "bytes"}, b"".join(samples))


def index_of_mds_shards(store: Store, kind: Kind, random: Random) -> TokenIndex:
    hash_name = random.choice(["sha256", "md5", None])
    entries = []
    for name in kind.names:
        data = store.get(name)
        hashes = {hash_name: hashlib.new(hash_name, data).hexdigest()} if hash_name else {}
        stored = {"basename": name, "bytes": len(data), "hashes": hashes}
        entry = {"format": "mds", "version": 2, "samples": 16, "raw_data": stored, "zip_data": None}
        entries.append({**entry, "compression": "zstd:7" if kind.suffix.endswith("zstd") else None})
    index = index_of_mds(store, json.dumps({"version": 2, "shards": entries}).encode(), store.url)
    assert index
    return index


def packed_mds(ids: list[int]) -> bytes:
    return bytes(pyarrow.compress(mds(ids), "zstd", asbytes=True))


RAW = Kind(suffix="bin", shard_of=raw, index_of=index_of_raw, is_decoded=False)
PARQUET = Kind(suffix="parquet", shard_of=parquet, index_of=index_of_parquet)
MDS = Kind(suffix="mds", shard_of=mds, index_of=index_of_mds_shards)
MDS_ZSTD = Kind(suffix="mds.zstd", shard_of=packed_mds, index_of=index_of_mds_shards)
CASES = [
    *((RAW, place) for place in PLACES),
    *((kind, place) for kind in (PARQUET, MDS) for place in PLACES),
    (MDS_ZSTD, "folder"),
]
FEW_CASES = [(kind, place) for kind, place in CASES if kind is RAW or place == "folder"]
Damage = Callable[[Store, Kind, Random], None]


def flip(store: Store, kind: Kind, random: Random) -> None:
    name = random.choice(kind.names)
    data = bytearray(store.get(name))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    store.put(name, bytes(data))


def cut(store: Store, kind: Kind, random: Random) -> None:
    name = random.choice(kind.names)
    data = store.get(name)
    store.put(name, data[: random.randrange(len(data))])


def lengthen(store: Store, kind: Kind, random: Random) -> None:
    name = random.choice(kind.names)
    data, more = store.get(name), random.randbytes(random.randrange(1, 40))
    store.put(name, random.choice([more + data, data + more]))


def exchange(store: Store, kind: Kind, random: Random) -> None:
    one, other = random.sample(kind.names, 2)
    bodies = store.get(one), store.get(other)
    store.put(one, bodies[1])
    store.put(other, bodies[0])


def substitute(store: Store, kind: Kind, random: Random) -> None:
    """Of ids that the model knows, as another packing's are."""
    ids = [random.randrange(256) for _ in range(SHARD_TOKENS)]
    store.put(random.choice(kind.names), kind.shard_of(ids))


def write_in_place(store: Store, kind: Kind, random: Random) -> None:
    """Of a folder: no other file, and its time set back."""
    if not isinstance(store, LocalStore):
        substitute(store, kind, random)
        return
    path = store.root / random.choice(kind.names)
    before = path.stat()
    with path.open("r+b") as file:
        at = random.randrange(before.st_size)
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES: tuple[Damage, ...] = (flip, cut, lengthen, exchange, substitute, write_in_place)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as port, pytest.MonkeyPatch.context() as patch:
        servers.make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


def write(store: Store, ids: list[int], kind: Kind, random: Random) -> Tokens:
    for number, name in enumerate(kind.names):
        store.put(name, kind.shard_of(ids[number * SHARD_TOKENS : (number + 1) * SHARD_TOKENS]))
    windows = cut_into_windows(len(ids), seq_len=SEQ_LEN, num_held_out=NUM_HELD_OUT)
    return Tokens(url=store.url, index=kind.index_of(store, kind, random), windows=windows)


def trial(seed: int, kind: Kind, place: str, folder: Path, bucket: str) -> str:
    """What came of it: "refused" or "not read". Raises ``AssertionError`` if a sample was another one."""
    random = Random(seed)
    url = f"{bucket}/{seed}" if "bucket" in place else str(folder / "far")
    store, ids = open_store(url), [random.randrange(256) for _ in range(NUM_SHARDS * SHARD_TOKENS)]
    tokens = write(store, ids, kind, random)
    damage, world = random.choice(DAMAGES), random.choice(WORLDS)
    num_steps = 2 * tokens.windows.num_samples // STEP
    # Before the driver has looked, before ranks look, or before a step.
    moment = random.choice([-2, -1, *range(num_steps)])
    if kind.is_decoded and random.random() < 0.8:
        # Before the first step, all is decoded.
        moment = random.choice([-2, -1, 0])
    has_copies = kind.is_decoded or place.startswith("copies")
    has_kept, near = False, folder / "near"
    if has_copies:
        tokens = replace(tokens, cache=ShardCacheLimits(folder=str(near), limit_bytes=10**6))
    harmed: Store | None = store
    if place.startswith("copies") and moment >= 0 and random.random() < 0.5:
        harmed = None  # the copies, which are there only then
    is_named = all((shard.sha256 or "").startswith(("sha256:", "md5:")) for shard in tokens.index.shards)
    if kind.is_decoded and ((moment == -2 and not is_named) or random.random() < 0.5):
        tokens = known(tokens, store, kind, world, folder / "saves")
        if not (has_kept := random.random() < 0.5):
            near = folder / "another"
            tokens = replace(tokens, cache=ShardCacheLimits(folder=str(near), limit_bytes=10**6))

    def harm(now: int) -> None:
        if now != moment:
            return
        where = harmed or LocalStore(folder_of_copies(near, kind))
        if isinstance(where, LocalStore):
            let_the_clock_tick(where.root, f"*.{kind.suffix}")
        damage(where, kind, random)

    harm(-2)
    tokens = looked_at(tokens, store, kind)
    harm(-1)
    try:
        ranks = samples_of(world, tokens, store=folder / "saves")
        for step in range(num_steps):
            harm(step)
            position = step * STEP
            wait_for(ranks, position)
            numbers = [
                sample_at(position + at, num_samples=tokens.windows.num_samples, seed=1) for at in range(STEP)
            ]
            expected = [tuple(ids[SEQ_LEN * number : SEQ_LEN * number + SEQ_LEN + 1]) for number in numbers]
            assert sorted(step_of(ranks, position)) == sorted(expected), (damage.__name__, moment, step)
    except DataError as error:
        assert re.search(rf"/\d\.{kind.suffix}:? ", str(error)), error
        return "refused"
    # Copies are read in their place, and a harmed copy is not; what happens late is read by nobody.
    is_late = moment > num_steps // 3 or (has_copies and moment >= 0) or (has_kept and moment == -1)
    assert is_late, f"{damage.__name__} at {moment} was not noticed"
    return "not read"


def looked_at(tokens: Tokens, store: Store, kind: Kind) -> Tokens:
    """As the driver of an attempt does."""
    looks = versions_of(store)
    return replace(tokens, versions=tuple(looks.look(name)[1] for name in kind.names))


def wait_for(ranks: list[Samples], position: int) -> None:
    while not all(one.wait(position, 1.0) for one in ranks):
        pass


def known(tokens: Tokens, store: Store, kind: Kind, world: World, saves: Path) -> Tokens:
    """As they are told to the attempt behind one that has begun its first step."""
    tokens = replace(looked_at(tokens, store, kind), ledger=ledger_of("r", 1))
    ranks = samples_of(world, tokens, store=saves)
    wait_for(ranks, 0)
    step_of(ranks, 0)
    found = read_ledger(LocalStore(saves), ledger_of("r", 1), set(kind.names))
    assert {shard.name for shard in found} == set(kind.names)
    return replace(tokens, known=found)


def folder_of_copies(near: Path, kind: Kind) -> Path:
    """Once all are there: they are made in the background."""
    while len(whole := [one for one in near.rglob(f"?.{kind.suffix}") if one.stat().st_size]) < NUM_SHARDS:
        pass
    return whole[0].parent


def trials(kind: Kind, place: str, num: int, tmp_path: Path, bucket: str) -> Counter[str]:
    first = int(os.environ.get(SEED) or SystemRandom().randrange(10**9))
    found = Counter[str]()
    for seed in range(first, first + (1 if SEED in os.environ else num)):
        try:
            found[trial(seed, kind, place, tmp_path / str(seed), bucket)] += 1
        except BaseException as error:
            error.add_note(f"again: {SEED}={seed}, {kind.suffix} in {place}")
            raise
    return found


def name_of(value: Kind | str) -> str:
    return value.suffix if isinstance(value, Kind) else value


@pytest.mark.parametrize(("kind", "place"), FEW_CASES, ids=name_of)
def test_no_sample_of_a_few_mutated_shards_is_given_to_a_rank(
    kind: Kind, place: str, tmp_path: Path, bucket: str
) -> None:
    assert trials(kind, place, 4, tmp_path, bucket).total()


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "place"), CASES, ids=name_of)
def test_no_sample_of_a_hundred_mutated_shards_is_given_to_a_rank(
    kind: Kind, place: str, tmp_path: Path, bucket: str
) -> None:
    found = trials(kind, place, 100, tmp_path, bucket)
    print(f"{kind.suffix} in {place}: {dict(found)}")
    # Others harm what is not read any more.
    assert found["refused"] > (30 if kind.is_decoded or not place.startswith("copies") else 5)


SPEC = """
name: r
model: llama-tiny
seq_len: 32
steps: 4
micro_batch: 2
eval: {samples: 4}
checkpoint: {every_steps: 2}
data: {kind: tokens, path: far}
"""


@pytest.mark.soak
@pytest.mark.parametrize("damage", [flip, exchange, substitute])
def test_a_training_on_mutated_shards_ends_before_its_first_step(damage: Damage, tmp_path: Path) -> None:
    store, random = LocalStore(tmp_path / "far"), Random(1)
    ids = [random.randrange(256) for _ in range(NUM_SHARDS * SHARD_TOKENS)]
    store.put(INDEX, to_json(write(store, ids, RAW, random).index))
    (tmp_path / "r.yaml").write_text(SPEC.replace("far", store.url), encoding="utf-8")
    damage(store, RAW, random)
    done = run_forked(train_command(tmp_path / "r.yaml", tmp_path / "store"))
    assert done.returncode == 1, done.stderr
    assert re.search(r"/far/\d\.bin: its bytes are not those that its index names", done.stderr)
    assert not Repository(LocalStore(tmp_path / "store"), "r").refresh().generations
