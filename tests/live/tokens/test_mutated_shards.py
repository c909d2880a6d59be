"""Shards that are flipped, cut, lengthened, exchanged or replaced: no rank is given a sample of such bytes.

A trial reads as a training does, up to two epochs. Somewhere before or between its steps one thing happens to
the shards, in a folder, in a bucket, or to their copies on the node. From then on each step has the samples
of the definition, or ends the attempt with the shard's name.
"""

import hashlib
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.versions import versions_of
from jobs.training.task.sample_order import sample_at
from jobs.training.task.task import ShardCacheLimits, Tokens
from jobs.training.task.token_index import INDEX, DataError, TokenIndex, TokenShard, to_json
from jobs.training.task.windows import cut_into_windows
from tests.live import servers
from tests.live.forked_command import run_forked
from tests.live.servers import BUCKET, HOST, S3_KEYS
from tests.live.tokens.test_samples import NUM_HELD_OUT, WORLDS, samples_of, step_of
from tests.live.tokens.test_token_runs import train_command
from tests.unit.clock_ticks import let_the_clock_tick
from tests.unit.seeds import SEED

SEQ_LEN, STEP, NUM_SHARDS, SHARD_TOKENS = 32, 8, 4, 400
NAMES = [f"{number}.bin" for number in range(NUM_SHARDS)]
PLACES = ("folder", "copies of a folder", "bucket", "copies of a bucket")
Damage = Callable[[Store, Random], None]


def flip(store: Store, random: Random) -> None:
    name = random.choice(NAMES)
    data = bytearray(store.get(name))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    store.put(name, bytes(data))


def cut(store: Store, random: Random) -> None:
    name = random.choice(NAMES)
    data = store.get(name)
    store.put(name, data[: random.randrange(len(data))])


def lengthen(store: Store, random: Random) -> None:
    name = random.choice(NAMES)
    store.put(name, random.randbytes(random.randrange(1, 40)) + store.get(name))


def exchange(store: Store, random: Random) -> None:
    one, other = random.sample(NAMES, 2)
    bodies = store.get(one), store.get(other)
    store.put(one, bodies[1])
    store.put(other, bodies[0])


def substitute(store: Store, random: Random) -> None:
    """Of ids that the model knows, as another packing's are."""
    ids = [random.randrange(256) for _ in range(SHARD_TOKENS)]
    store.put(random.choice(NAMES), struct.pack(f"<{SHARD_TOKENS}H", *ids))


def write_in_place(store: Store, random: Random) -> None:
    """Of a folder: no other file, and its time set back."""
    if not isinstance(store, LocalStore):
        substitute(store, random)
        return
    path = store.root / random.choice(NAMES)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(2 * random.randrange(SHARD_TOKENS))
        file.write(b"\xfe\x00")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES: tuple[Damage, ...] = (flip, cut, lengthen, exchange, substitute, write_in_place)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as port, pytest.MonkeyPatch.context() as patch:
        servers.make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


def write(store: Store, ids: list[int]) -> Tokens:
    shards = []
    for number, name in enumerate(NAMES):
        part = ids[number * SHARD_TOKENS : (number + 1) * SHARD_TOKENS]
        data = struct.pack(f"<{SHARD_TOKENS}H", *part)
        store.put(name, data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(TokenShard(name=name, num_tokens=SHARD_TOKENS, sha256=digest))
    windows = cut_into_windows(len(ids), seq_len=SEQ_LEN, num_held_out=NUM_HELD_OUT)
    return Tokens(url=store.url, index=TokenIndex(dtype="uint16", shards=tuple(shards)), windows=windows)


def trial(seed: int, place: str, folder: Path, bucket: str) -> str:
    """What came of it: "refused" or "not read". Raises ``AssertionError`` if a sample was another one."""
    random = Random(seed)
    url = f"{bucket}/{seed}" if "bucket" in place else str(folder / "far")
    store, ids = open_store(url), [random.randrange(256) for _ in range(NUM_SHARDS * SHARD_TOKENS)]
    tokens = write(store, ids)
    damage, world = random.choice(DAMAGES), random.choice(WORLDS)
    num_steps = 2 * tokens.windows.num_samples // STEP
    # Before the driver has looked, before ranks look, or before a step.
    moment = random.choice([-2, -1, *range(num_steps)])
    if has_copies := place.startswith("copies"):
        tokens = replace(tokens, cache=ShardCacheLimits(folder=str(folder / "near"), limit_bytes=10**6))
    harmed: Store | None = store
    if has_copies and moment >= 0 and random.random() < 0.5:
        harmed = None  # the copies, which are there only then

    def harm(now: int) -> None:
        if now != moment:
            return
        where = harmed or LocalStore(folder_of_copies(folder / "near"))
        if isinstance(where, LocalStore):
            let_the_clock_tick(where.root)
        damage(where, random)

    harm(-2)
    looks = versions_of(store)
    tokens = replace(tokens, versions=tuple(looks.look(name)[1] for name in NAMES))
    harm(-1)
    try:
        ranks = samples_of(world, tokens)
        for step in range(num_steps):
            harm(step)
            position = step * STEP
            while not all(one.wait(position, 1.0) for one in ranks):
                pass
            numbers = [
                sample_at(position + at, num_samples=tokens.windows.num_samples, seed=1) for at in range(STEP)
            ]
            expected = [tuple(ids[SEQ_LEN * number : SEQ_LEN * number + SEQ_LEN + 1]) for number in numbers]
            assert sorted(step_of(ranks, position)) == sorted(expected), (damage.__name__, moment, step)
    except DataError as error:
        assert re.search(r"/\d\.bin:? ", str(error)), error
        return "refused"
    # Copies are read in their place, and a harmed copy is not; what happens late is read by nobody.
    is_late = moment > num_steps // 3
    assert is_late or (has_copies and moment >= 0), f"{damage.__name__} at {moment} was not noticed"
    return "not read"


def folder_of_copies(near: Path) -> Path:
    """Once all are there: they are made in the background."""
    while len(whole := [path for path in near.rglob("*.bin") if path.stat().st_size]) < NUM_SHARDS:
        pass
    return whole[0].parent


def trials(place: str, num: int, tmp_path: Path, bucket: str) -> Counter[str]:
    first = int(os.environ.get(SEED) or SystemRandom().randrange(10**9))
    found = Counter[str]()
    for seed in range(first, first + (1 if SEED in os.environ else num)):
        try:
            found[trial(seed, place, tmp_path / str(seed), bucket)] += 1
        except BaseException as error:
            error.add_note(f"again: {SEED}={seed}, {place}")
            raise
    return found


@pytest.mark.parametrize("place", PLACES)
def test_no_sample_of_a_few_mutated_shards_is_given_to_a_rank(
    place: str, tmp_path: Path, bucket: str
) -> None:
    assert trials(place, 4, tmp_path, bucket).total()


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
def test_no_sample_of_a_hundred_mutated_shards_is_given_to_a_rank(
    place: str, tmp_path: Path, bucket: str
) -> None:
    found = trials(place, 100, tmp_path, bucket)
    print(f"{place}: {dict(found)}")
    # Others harm what is not read any more.
    assert found["refused"] > (5 if place.startswith("copies") else 30)


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
    store.put(INDEX, to_json(write(store, ids).index))
    (tmp_path / "r.yaml").write_text(SPEC.replace("far", store.url), encoding="utf-8")
    damage(store, random)
    done = run_forked(train_command(tmp_path / "r.yaml", tmp_path / "store"))
    assert done.returncode == 1, done.stderr
    assert re.search(r"/far/\d\.bin: its bytes are not those that its index names", done.stderr)
    assert not Repository(LocalStore(tmp_path / "store"), "r").refresh().generations
