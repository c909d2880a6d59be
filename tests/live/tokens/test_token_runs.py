"""Text is packed and trained on as a user does it; and shards that go away while somebody reads them."""

import hashlib
import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from cluster.local_ray.private_ray import private_ray
from jobs.packing.pieces import InputError, cut_into_pieces
from jobs.packing.ray_pack import pack_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources
from jobs.packing.tokenizing import ByteTokenizer, TokenizerRecipe
from jobs.packing.work import Work
from jobs.runs.data_check.find import find_tokens
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.events import Evaluated, Progress
from reporting.long_runs.reading import one_run
from reporting.long_runs.summarising import long_runs
from tests.live.attempts import Story, Wanted, attempt_each, digests_of, newest_manifest
from tests.live.command_line import DEADLINE_S, run, running, write_spec
from tests.live.forked_command import run_forked
from tests.live.ranks import run_ranks
from tests.live.servers import BUCKET, HOST, S3_KEYS, make_bucket, moto
from tests.live.trainings import recipe_for
from tests.proxy import Hung, Nothing, Proxy
from tests.unit.printed import checked

RUN = """
name: r
model: llama-tiny
seq_len: 32
steps: 8
micro_batch: 2
eval: {every_steps: 4, samples: 8}
optimizer: {warmup_steps: 5}
checkpoint: {every_steps: 2, on_busy: wait, retention: {epochs: false}}
"""
NUM_LINES = 120
# Whoever packs the same text with bytes gets this index. It changed twice: it says what ends a document,
# and what begins one.
INDEX_DIGEST = "919f2b45de0647e35e881b418c4a955e4236ffa1bed72e8668abbd89ca71d1c2"


def data(path: object, more: str = ", tokenizer: bytes") -> str:
    return f"data: {{kind: tokens, path: {path}{more}}}\n"


def write_text(folder: Path) -> Path:
    folder.mkdir()
    lines = [f"line {number} of a small book, {number * number % 97}\n" for number in range(NUM_LINES)]
    (folder / "b.txt").write_text("".join(lines))
    records = [json.dumps({"text": line, "number": number}) for number, line in enumerate(lines)]
    (folder / "a.jsonl").write_text("\n".join(records))
    return folder


def pack_command(text: Path, out: object) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", "pack", str(text), "--out", str(out), "--json"]


def train_command(spec: Path, store: object, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store)]
    return [*command, "--executor", "inline", *flags]


def write_index(place: Path, *shards: bytes) -> None:
    """Made by hand, as the documentation says it may be."""
    entries = []
    for number, shard in enumerate(shards):
        (place / f"{number}.bin").write_bytes(shard)
        entries.append({"name": f"{number}.bin", "num_tokens": len(shard) // 2})
    body = {"format": "longhaul tokens 1", "dtype": "uint16", "shards": entries}
    (place / "index.json").write_text(json.dumps(body))


def test_a_slow_source_is_told_as_the_share_of_time_that_the_training_waited_for_it(tmp_path: Path) -> None:
    place, read_s = tmp_path / "tokens", 0.3
    place.mkdir()
    write_index(place, struct.pack("<2000H", *(number % 500 for number in range(2000))))
    found = find_tokens(RunSpec.load(write_spec(tmp_path, RUN + data(place, ""))))
    wanted = Wanted(
        name="r",
        recipe=recipe_for("ddp", world_size=1),
        num_steps=12,
        store=tmp_path / "store",
        every_steps=100,
        tokens=found,
        read_s=read_s,
    )
    [[story]] = run_ranks(attempt_each, [wanted], num_ranks=1, tmp_path=tmp_path)
    told = [one for one in story.told if isinstance(one, Progress)]
    assert told, "the training was over before its first report"
    rows = [
        row
        for part in (tmp_path / "store/runs/r/parts/steps").rglob("*.parquet")
        for row in pyarrow.parquet.read_table(part).to_pylist()
    ]
    waited = {row["step"]: row["data_wait_s"] for row in rows}
    # The first step's samples are asked for when there is nothing else to do.
    assert waited[1] >= read_s
    before = 0
    for one in told:
        assert one.tokens_per_s is not None and one.data_wait_share is not None
        lasted_s = (one.step - before) * wanted.recipe.tokens_per_step / one.tokens_per_s
        by_rows = sum(waited[step] for step in range(before + 1, one.step + 1)) / lasted_s
        assert one.data_wait_share == pytest.approx(by_rows, abs=0.01)
        before = one.step


def test_packed_text_is_trained_on_and_a_run_that_stopped_is_the_run_that_did_not(tmp_path: Path) -> None:
    text, tokens = write_text(tmp_path / "text"), tmp_path / "tokens"
    packed = run(pack_command(text, tokens))
    assert packed.returncode == 0, packed.stderr
    facts = checked("pack", packed.stdout)
    # Each line's document, the book's, and an end behind each.
    num_bytes = len((text / "b.txt").read_bytes())
    assert (facts["num_documents"], facts["num_tokens"]) == (NUM_LINES + 1, 2 * num_bytes + NUM_LINES + 1)
    assert hashlib.sha256((tokens / "index.json").read_bytes()).hexdigest() == INDEX_DIGEST

    found = find_tokens(RunSpec.load(write_spec(tmp_path, RUN + data(tokens))))
    recipe = recipe_for("ddp", world_size=2)
    wanted = [
        Wanted(
            name=name,
            recipe=recipe,
            num_steps=num_steps,
            store=tmp_path / "store",
            eval_every=4,
            tokens=found,
        )
        for name, num_steps in (("alone", 8), ("stopped", 3), ("stopped", 8))
    ]
    alone, stopped, gone_on = run_ranks(attempt_each, wanted, num_ranks=2, tmp_path=tmp_path)[0]
    assert (stopped.end.step, gone_on.start.step) == (3, 3)
    assert gone_on.end.loss == alone.end.loss
    assert len(val_losses(alone)) == 2
    assert [one.num_batches for one in (alone, stopped, gone_on)] == [8, 0, 8]
    assert val_losses(stopped) + val_losses(gone_on) == val_losses(alone)
    store = tmp_path / "store"
    assert digests_of(newest_manifest(store, "stopped")) == digests_of(newest_manifest(store, "alone"))


def test_a_run_of_epochs_that_has_finished_says_so_though_its_tokens_are_gone(tmp_path: Path) -> None:
    tokens, store = tmp_path / "tokens", tmp_path / "store"
    tokens.mkdir()
    write_index(tokens, bytes(1000))
    spec = write_spec(tmp_path, RUN.replace("steps: 8", "epochs: 1") + data(tokens, ""))
    first = run_forked(train_command(spec, store))
    assert first.returncode == 0, first.stderr
    tokens.rename(tmp_path / "elsewhere")
    again = run_forked(train_command(spec, store))
    assert again.returncode == 0, again.stderr
    assert "r: finished at step 3, nothing to do" in again.stdout
    longer = run_forked(train_command(spec, store, "--set", "epochs=2"))
    assert longer.returncode == 2, longer.stdout
    assert "index.json is not there" in longer.stderr


def test_documents_that_were_held_out_are_evaluated_on_also_after_a_resume_and_may_not_change(
    tmp_path: Path,
) -> None:
    text, tokens, store = write_text(tmp_path / "text"), tmp_path / "tokens", tmp_path / "store"
    packed = run([*pack_command(text / "a.jsonl", tokens), "--hold-out", "40%"])
    assert packed.returncode == 0, packed.stderr
    held_out = tokens / "held-out"
    text_of_spec = RUN.replace("samples: 8", f"samples: 8, path: {held_out}") + data(tokens)
    spec = write_spec(tmp_path, text_of_spec)
    evaluated = []
    for steps in (4, 8):
        done = run_forked(train_command(spec, store, "--set", f"steps={steps}"))
        assert done.returncode == 0, done.stderr
        evaluated += re.findall(r"r: step (\d+): val_loss \d", done.stdout)
    assert evaluated == ["4", "8"]
    changed = run_forked(train_command(spec, store, "--set", "steps=12", "--set", f"eval.path={tokens}"))
    assert changed.returncode == 2, changed.stdout
    assert str(tokens) in changed.stderr


@pytest.mark.parametrize(
    ("settings", "kernel"),
    [
        (["attention=math"], "math"),
        (["data={kind: tokens, path: tokens, attention: per_document, end_id: 7}"], None),
    ],
)
def test_an_attempt_says_which_attention_kernel_ran(
    settings: list[str], kernel: str | None, tmp_path: Path
) -> None:
    (tmp_path / "tokens").mkdir()
    write_index(tmp_path / "tokens", struct.pack("<2000H", *(number % 250 for number in range(2000))))
    spec, store = write_spec(tmp_path, RUN + data(tmp_path / "tokens", "")), tmp_path / "store"
    changes = [word.replace("path: tokens", f"path: {tmp_path}/tokens") for word in settings]
    done = run_forked(train_command(spec, store, "--set", "steps=2", "--set", *changes))
    assert done.returncode == 0, done.stderr
    [found] = one_run(LocalStore(store), "r").attempts.values()
    told = next(text for _, kind, text in long_runs(LocalStore(store))[0][0].incidents if kind == "start")
    if kernel is None:  # of a row's documents, the first incident tells it too
        assert f"attention within documents (kernel {found.attention_kernel})" in told
    else:
        assert found.attention_kernel == kernel


def test_mds_shards_are_trained_on_as_the_same_ids_in_shards_are(tmp_path: Path) -> None:
    """What MosaicML Streaming wrote, compressed."""
    made, shards = Path(__file__).parents[2] / "fixtures/mds/arrays", tmp_path / "shards"
    lengths = (33, 300, 12, 255, 256)
    ids = [(7 * number + 3 * at) % 500 for number, count in enumerate(lengths) for at in range(count)]
    shards.mkdir()
    write_index(shards, struct.pack(f"<{len(ids)}H", *ids))
    trained = []
    for place in (shards, made):
        spec, store = write_spec(tmp_path, RUN + data(place, "")), tmp_path / f"store-{place.name}"
        done = run_forked(train_command(spec, store, "--set", "steps=4"))
        assert done.returncode == 0, done.stderr
        trained.append(digests_of(newest_manifest(store, "r")))
    assert trained[0] == trained[1]


def test_ids_in_parquet_are_trained_on_as_the_same_ids_in_shards_are(tmp_path: Path) -> None:
    ids = [number * number % 251 for number in range(2000)]
    shards, table = tmp_path / "shards", tmp_path / "table"
    shards.mkdir()
    table.mkdir()
    write_index(shards, struct.pack("<2000H", *ids))
    rows = [ids[first : first + 300] for first in range(0, len(ids), 300)]
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": rows}), table / "part-0.parquet")
    trained = []
    for place in (shards, table):
        spec, store = write_spec(tmp_path, RUN + data(place, "")), tmp_path / f"store-{place.name}"
        done = run_forked(train_command(spec, store, "--set", "steps=4"))
        assert done.returncode == 0, done.stderr
        trained.append(digests_of(newest_manifest(store, "r")))
    assert trained[0] == trained[1]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        pytest.param(lambda shard: shard.unlink(), "1.bin is gone; bring it back", id="vanished"),
        pytest.param(
            lambda shard: os.truncate(shard, 2001),
            # By who reads beyond its end, or by who hashes it.
            "1.bin:? (was cut short: token 1,.* of 2,000 is not there|has 2,001 bytes, expected 4,000)",
            id="cut",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            lambda shard: shard.write_bytes(bytes(3999) + b"\1"),
            # The index has no digests.
            "1.bin: its bytes are not those that this run began with",
            id="changed",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_shard_that_is_harmed_while_it_is_read_ends_the_training_with_its_name(
    harm: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    write_index(tmp_path, *(bytes(4000) for _ in range(2)))
    store = tmp_path / "store"
    spec = write_spec(tmp_path, RUN + data(tmp_path, ""))
    flags = ("--set", "steps=100000", "--set", "recovery.pause_s=0.1")
    with running(train_command(spec, store, *flags)) as process:
        wait_until(lambda: bool(Repository(LocalStore(store), "r").refresh().generations))
        harm(tmp_path / "1.bin")
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert re.search(says, output.splitlines()[-1])


@pytest.mark.soak
def test_text_is_packed_into_object_storage_and_trained_on_from_there_and_from_the_disk(
    tmp_path: Path,
) -> None:
    text, url = write_text(tmp_path / "text"), f"s3://{BUCKET}/tokens"
    cache = tmp_path / "cache"
    with moto(tmp_path) as port:
        endpoint = f"http://{HOST}:{port}"
        make_bucket(endpoint, S3_KEYS)
        keys = {**S3_KEYS, "AWS_ENDPOINT_URL": endpoint}
        packed = run(pack_command(text, url), **keys)
        assert packed.returncode == 0, packed.stderr
        for number, local in enumerate(["", f", local: {{dir: {cache}}}"]):
            spec = write_spec(tmp_path, RUN + data(url, local))
            done = run_forked(train_command(spec, tmp_path / f"store-{number}"), **keys)
            assert done.returncode == 0, done.stderr
    assert [path.suffix for path in cache.rglob("0*")] == [".bin"]
    far, brought = (digests_of(newest_manifest(tmp_path / f"store-{number}", "r")) for number in range(2))
    assert far == brought


@pytest.mark.soak
def test_tokens_whose_store_stands_still_for_more_than_five_minutes_are_waited_for(tmp_path: Path) -> None:
    """Such a call fails two minutes later, and is tried again: no rank hangs, and no attempt ends."""
    text, store = write_text(tmp_path / "text"), tmp_path / "store"
    with moto(tmp_path) as port, Proxy(port) as proxy:
        make_bucket(proxy.url, S3_KEYS)
        keys = {**S3_KEYS, "AWS_ENDPOINT_URL": proxy.url}
        packed = run(pack_command(text, f"s3://{BUCKET}/tokens"), **keys)
        assert packed.returncode == 0, packed.stderr
        longer = RUN.replace("steps: 8", "steps: 400").replace("eval: {every_steps: 4, ", "eval: {")
        spec = write_spec(tmp_path, longer + data(f"s3://{BUCKET}/tokens"))
        command = [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store)]
        with running(command, **keys) as process:
            wait_until(lambda: bool(commits(store)))
            proxy.become(Hung())
            time.sleep(320)
            before = commits(store)
            assert before and before[-1] < 400
            proxy.become(Nothing())
            output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    view = Repository(LocalStore(store), "r").refresh()
    assert (view.term, view.finished_step) == (1, 400)


def commits(store: Path) -> list[int]:
    return [one.step for one in Repository(LocalStore(store), "r").refresh().generations]


def val_losses(story: Story) -> list[float | None]:
    return [told.val_loss for told in story.told if isinstance(told, Evaluated)]


def wait_until(is_so: Callable[[], bool], deadline_s: float = 120) -> None:
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_many_pieces_packed_on_workers_are_what_one_process_makes_of_them(tmp_path: Path) -> None:
    """And a piece that can't be packed is told of in its own words: of several, the first one's."""
    pieces = cut_into_pieces(find_sources([write_text(tmp_path / "text")], "text"), piece_bytes=700)
    assert len(pieces) > 10
    here, there = MemoryStore(), LocalStore(tmp_path / "there")
    alone = [pack_piece(piece, ByteTokenizer(), "text", here) for piece in pieces]
    work = Work(pieces=tuple(pieces), tokenizer=TokenizerRecipe(name="bytes"), column="text", store=there.url)
    with private_ray(num_cpus=2):
        assert pack_pieces(work) == alone
        for one in alone:
            assert one.shard is not None
            assert there.get(one.shard.name) == here.get(one.shard.name)
        with (tmp_path / "text" / "b.txt").open("r+b") as file:
            file.write(b"\xff")
            file.seek(2000)
            file.write(b"\xff")
        with pytest.raises(InputError, match=r"b\.txt: byte 0 is not UTF-8"):
            pack_pieces(work)
        (tmp_path / "text" / "b.txt").unlink()
        with pytest.raises(InputError, match=r"b\.txt: can't be read on .* every node must see it there"):
            pack_pieces(work)
