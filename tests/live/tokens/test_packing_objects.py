"""``longhaul pack`` reads objects of real servers, and gives the bytes that a folder gives."""

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores import objects as object_stores
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.objects import ObjectStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.versions import versions_of
from cluster.local_ray.private_ray import private_ray
from jobs.cli.__main__ import main
from jobs.packing.formats import objects
from jobs.packing.inputs.stored_inputs import StoredFolder, find_objects
from jobs.packing.pieces import InputError, cut_into_pieces
from jobs.packing.ray_pack import pack_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources, named
from jobs.packing.tokenizing import ByteTokenizer, TokenizerRecipe
from jobs.packing.work import Work
from tests.live import servers
from tests.live.servers import BUCKET, HOST, S3_KEYS

TEXTS = [f"text {number}: ü€😀 {'long ' * number}" for number in range(40)]
AZURE = {
    "AZURE_STORAGE_ACCOUNT_NAME": servers.AZURE_ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": servers.AZURE_KEY,
}


@pytest.fixture(scope="module", params=["s3", pytest.param("az", marks=pytest.mark.soak)])
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty bucket, on moto or Azurite."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "az":
        with servers.azurite(folder) as port:
            endpoint = f"http://{HOST}:{port}/{servers.AZURE_ACCOUNT}"
            with environment({**AZURE, "AZURE_STORAGE_ENDPOINT": endpoint}):
                yield f"az://{BUCKET}"
        return
    with servers.moto(folder) as port:
        servers.make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        with environment({**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}):
            yield f"s3://{BUCKET}"


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        objects.store_at.cache_clear()
        yield
    objects.store_at.cache_clear()


@pytest.fixture
def books(tmp_path: Path) -> Path:
    place = tmp_path / "books"
    (place / "more").mkdir(parents=True)
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (place / "one.jsonl").write_text(lines)
    (place / "more/two.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (place / "more/three.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    (place / "five.txt").write_text("\n".join(TEXTS))
    (place / "empty.txt").touch()
    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, place / "six.parquet", row_group_size=7)
    with pyarrow.ipc.new_file(place / "seven.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    (place / "README.md").write_text("no data")
    return place


def uploaded(books: Path, url: str) -> str:
    store = open_store(url)
    for path in books.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(books).as_posix(), path.read_bytes())
    return url


def packed(inputs: list[Path | str], piece_bytes: int) -> list[bytes]:
    store = MemoryStore()
    pieces = cut_into_pieces(find_sources(named(inputs), "text"), piece_bytes)
    shards = [pack_piece(piece, ByteTokenizer(), "text", store).shard for piece in pieces]
    return [store.get(shard.name) for shard in shards if shard]


@pytest.mark.parametrize("below", ["", "/one.jsonl", "/*/*.gz", "/m*", "/*.parquet"])
def test_a_bucket_gives_the_shards_that_a_folder_gives(below: str, bucket: str, books: Path) -> None:
    url = uploaded(books, f"{bucket}/in/books")
    found = packed([f"{url}{below}"], 1500)
    assert found == packed([Path(f"{books}{below}")], 1500)
    assert found


def test_the_listing_of_a_bucket_tells_what_each_object_would(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is large enough to be uploaded in parts. The first is asked too, and the folder's name."""
    store = open_store(f"{bucket}/listed")
    for number in range(5):
        store.put(f"{number}.txt", bytes(number + 1))
    store.put("large.txt", bytes(9 << 20))
    asked: list[str] = []
    look = ObjectStore.look

    def noted(store: ObjectStore, name: str) -> tuple[int, str | None]:
        asked.append(name)
        return look(store, name)

    monkeypatch.setattr(ObjectStore, "look", noted)
    [folder] = find_objects(f"{bucket}/listed")
    assert len(asked) == 2
    assert isinstance(folder, StoredFolder)
    assert [(one.num_bytes, one.version) for one in folder.objects] == [
        versions_of(store).look(one.name) for one in folder.objects
    ]


def test_the_command_packs_from_a_bucket_into_it(
    bucket: str, books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One piece: no Ray is started."""
    url = uploaded(books, f"{bucket}/command/books")
    assert main(["pack", url, "--out", f"{bucket}/command/tokens"]) == 0
    there = capsys.readouterr().out
    assert main(["pack", str(books), "--out", str(tmp_path / "tokens")]) == 0
    assert there.replace(f"{bucket}/command", str(tmp_path)) == capsys.readouterr().out
    index = (tmp_path / "tokens/index.json").read_bytes()
    assert open_store(f"{bucket}/command/tokens").get("index.json") == index


@pytest.mark.soak
def test_workers_pack_ranges_of_an_object(bucket: str, books: Path, tmp_path: Path) -> None:
    url = uploaded(books, f"{bucket}/workers/books")
    pieces = cut_into_pieces(find_sources(named([f"{url}/*.jsonl", f"{url}/*.parquet"]), "text"), 1500)
    assert len(pieces) > 5
    here, there = MemoryStore(), LocalStore(tmp_path / "there")
    alone = [pack_piece(piece, ByteTokenizer(), "text", here) for piece in pieces]
    work = Work(pieces=tuple(pieces), tokenizer=TokenizerRecipe(name="bytes"), column="text", store=there.url)
    with private_ray(num_cpus=2):
        assert pack_pieces(work) == alone
        open_store(url).put("one.jsonl", b"{}" * 10_000)
        with pytest.raises(InputError, match=rf"^{url}/one.jsonl: was replaced while it was packed"):
            pack_pieces(work)


def test_a_bucket_or_an_object_that_is_not_there_ends_packing_in_one_line(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bucket.replace(BUCKET, "nowhere")
    assert main(["pack", f"{url}/a.txt", "--out", str(tmp_path / "tokens")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"longhaul pack: {url}") and told.count("\n") == 1
    assert main(["pack", f"{bucket}/none/*.txt", "--out", str(tmp_path / "tokens")]) == 2
    assert capsys.readouterr().err.startswith(f"longhaul pack: {bucket}/none/*.txt: fits no file")


@pytest.mark.parametrize("key", ["x/../../a.parquet", "x//a.parquet", "x/\x1b[2J.parquet"])
def test_an_object_that_no_client_can_name_is_told_at_once(
    key: str, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if bucket.startswith("az"):
        pytest.skip("boto3 speaks to S3 alone")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    client.put_object(Bucket=BUCKET, Key=f"strange/{key}", Body=b"x")
    try:
        for command in (["data"], ["pack", "--out", str(tmp_path / "out")]):
            assert main([*command, f"{bucket}/strange"]) == 2
            [line] = capsys.readouterr().err.splitlines()
            assert "which nobody can name" in line and line.isprintable()
    finally:
        client.delete_object(Bucket=BUCKET, Key=f"strange/{key}")


def test_a_listing_without_an_end_is_refused(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"{bucket}/endless")
    for number in range(4):
        store.put(f"{number}.parquet", b"x")
    monkeypatch.setattr(object_stores, "MOST_LISTED", 3)
    for words in (
        ["data", f"{bucket}/endless"],
        ["pack", f"{bucket}/endless", "--out", str(tmp_path / "out")],
    ):
        assert main(words) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "lists more than 3 objects" in line
