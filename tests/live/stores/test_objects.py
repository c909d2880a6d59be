"""The contract of a store over real servers: S3 as moto and as OpenStack Swift speak it, and Azure.

Swift looks whether an object exists and then writes it: of several who create one name in the same moment
more than one may win. So it is left out of the races, and its probe refuses it.
"""

import secrets
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores.contract import (
    Conflict,
    Denied,
    Store,
    StoreError,
    abandoned_uploads,
    abort_uploads,
)
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check.find import find_tokens
from jobs.spec_schema.run_spec import RunSpec
from tests.contract import LARGE, RaceContract, StoreContract, at_once
from tests.live import servers
from tests.live.servers import BUCKET, HOST, S3_KEYS, S3RVER_KEYS, SWIFT_KEYS
from tests.proxy import Careless, CopiesNothing, LooksThenWrites, Proxy

FAR_FUTURE = datetime.now(UTC) + timedelta(days=365)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # moto's uploads all began in 2010


def fresh(scheme: str) -> Store:
    """A prefix that nobody used."""
    return open_store(f"{scheme}://{BUCKET}/tests/{secrets.token_hex(8)}")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@contextmanager
def s3_at(port: int) -> Iterator[str]:
    """The URL of a server that makes a bucket when it is asked, for the stores that are opened inside."""
    url = f"http://{HOST}:{port}"
    servers.make_bucket(url, S3_KEYS)
    with environment({**S3_KEYS, "AWS_ENDPOINT_URL": url}):
        yield url


class TestMoto(StoreContract, RaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with servers.moto(tmp_path_factory.mktemp("moto")) as port, s3_at(port) as url:
            yield url

    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return fresh("s3")


class TestAzurite(StoreContract, RaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with servers.azurite(tmp_path_factory.mktemp("azurite")) as port:
            url = f"http://{HOST}:{port}"
            with environment(
                {
                    "AZURE_STORAGE_ACCOUNT_NAME": servers.AZURE_ACCOUNT,
                    "AZURE_STORAGE_ACCOUNT_KEY": servers.AZURE_KEY,
                    "AZURE_STORAGE_ENDPOINT": f"{url}/{servers.AZURE_ACCOUNT}",
                }
            ):
                yield url

    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return fresh("az")


@pytest.mark.soak
class TestMinistack(StoreContract, RaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with servers.ministack(tmp_path_factory.mktemp("ministack")) as port, s3_at(port) as url:
            yield url

    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return fresh("s3")


@pytest.mark.soak
class TestS3rver:
    """It replaces what a condition should have kept: no run may begin on it."""

    def test_it_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with (
            servers.s3rver(tmp_path) as port,
            environment({**S3RVER_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}),
        ):
            store = fresh("s3")
            with pytest.raises(StoreError, match="does not refuse to create what exists"):
                store.probe()
            assert list(store.list("probe")) == []


class TestSwiftOverHttps(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        folder = tmp_path_factory.mktemp("swift")
        tls, authority = servers.self_signed(folder)
        with servers.swift(folder) as port, Proxy(port, tls=tls) as front:
            servers.make_bucket(front.url, SWIFT_KEYS, authority=authority)
            with environment({**SWIFT_KEYS, "AWS_ENDPOINT_URL": front.url, "AWS_CA_BUNDLE": str(authority)}):
                yield front.url

    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return fresh("s3")

    def test_a_store_that_works_passes_its_probe_and_holds_nothing_of_it(self, store: Store) -> None:
        """It keeps the contract but for races. One probe in a hundred sees none that two win."""
        with pytest.raises(StoreError, match="does not let only one of several create an object"):
            for _ in range(5):
                store.probe()
        assert list(store.list("probe")) == []

    def test_a_wrong_key_is_denied(self, endpoint: str) -> None:
        with environment({"AWS_SECRET_ACCESS_KEY": "wrong"}):
            store = fresh("s3")
            with pytest.raises(Denied, match="403 SignatureDoesNotMatch; check the credentials"):
                store.put("a", b"")


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as port:
        servers.make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        with environment({**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}):
            yield port


def test_a_store_that_creates_what_exists_is_refused(moto: int) -> None:
    with Proxy(moto) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        proxy.become(Careless())
        store = fresh("s3")
        with pytest.raises(StoreError, match=r"does not refuse to create what exists.*--store$"):
            store.probe()
        assert list(store.list("probe")) == []


def test_a_store_where_two_win_a_race_is_refused_though_one_client_alone_sees_nothing(moto: int) -> None:
    with Proxy(moto) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        proxy.become(LooksThenWrites())
        store = fresh("s3")
        store.create("a", b"1")
        with pytest.raises(Conflict):
            store.create("a", b"2")
        with pytest.raises(StoreError, match=r"does not let only one of several create.*--store$"):
            store.probe()
        assert list(store.list("probe")) == []


def test_where_no_copy_is_taken_a_large_create_is_won_by_one_and_leaves_nothing_else(moto: int) -> None:
    with Proxy(moto) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        proxy.become(CopiesNothing())
        store = fresh("s3")
        answers = at_once(lambda index: store.create("f/a", bytes([index]) * LARGE), num_threads=3)
        assert proxy.num_faults
        assert [type(answer) for answer in answers if answer] == [Conflict, Conflict]
        assert store.get("f/a") == bytes([answers.index(None)]) * LARGE
        assert list(store.contents()) == ["f/a"]
        with pytest.raises(Conflict):
            store.create("f/a", b"\t" * LARGE)


def test_keys_that_a_server_does_not_know_are_denied_at_once_and_not_repeated(tmp_path: Path) -> None:
    says = r"^store: s3://checkpoints/runs: a: 403 .*credentials"
    with (
        servers.moto(tmp_path, unchecked_requests=0) as port,
        environment({**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}),
    ):
        store = open_store("s3://checkpoints/runs")
        for refused in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: [*store.list("a")]):
            with pytest.raises(Denied, match=says) as error:
                refused()
            told = "".join(traceback.format_exception(error.value))
            assert S3_KEYS["AWS_SECRET_ACCESS_KEY"] not in told
            assert "AWSAccessKeyId" not in told


def test_without_any_keys_it_is_denied(moto: int, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        store = fresh("s3")
        with pytest.raises(Denied, match="credentials"):
            store.get("a")
        with pytest.raises(Denied, match="credentials"):
            abandoned_uploads(store, "a", before=FAR_FUTURE)


def test_keys_of_a_profile_in_the_usual_file_are_found(moto: int, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[training]\naws_access_key_id = one\naws_secret_access_key = two\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        patch.setenv("AWS_PROFILE", "training")
        store = fresh("s3")
        store.put("a", b"1")
        assert store.get("a") == b"1"


def test_a_bucket_that_is_not_there_is_the_users_turn(moto: int) -> None:
    store = open_store("s3://no-such-bucket/runs")
    for refused in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: [*store.list("a")]):
        with pytest.raises(StoreError, match="NoSuchBucket; make the bucket first") as error:
            refused()
        assert type(error.value) is StoreError


def test_a_server_whose_certificate_nobody_vouches_for_is_the_users_turn(moto: int, tmp_path: Path) -> None:
    tls, _ = servers.self_signed(tmp_path)
    with Proxy(moto, tls=tls) as front, environment({"AWS_ENDPOINT_URL": front.url}):
        store = fresh("s3")
        with pytest.raises(StoreError, match=r"its certificate is not trusted.*AWS_CA_BUNDLE") as error:
            store.get("a")
        assert type(error.value) is StoreError


def test_ids_at_a_buckets_root_are_found_and_a_name_that_is_none_is_refused(
    moto: int, tmp_path: Path
) -> None:
    client = boto3.client("s3", endpoint_url=f"http://{HOST}:{moto}")
    client.create_bucket(Bucket="ids")
    pyarrow.parquet.write_table(pyarrow.table({"ids": [*range(400)]}), tmp_path / "ids.parquet")
    for key in ("0.parquet", "more/1.parquet"):
        client.put_object(Bucket="ids", Key=key, Body=(tmp_path / "ids.parquet").read_bytes())
    (tmp_path / "spec.yaml").write_text(
        "{name: r, model: llama-tiny, steps: 4, seq_len: 4, data: {kind: tokens, path: 's3://ids'}}"
    )
    spec = RunSpec.load(tmp_path / "spec.yaml")
    tokens = find_tokens(spec)
    assert tokens is not None
    assert [shard.name for shard in tokens.index.shards] == ["0.parquet", "more/1.parquet"]

    client.put_object(Bucket="ids", Key="part 2.parquet", Body=b"")
    assert sorted(open_store("s3://ids").contents()) == ["0.parquet", "more/1.parquet", "part 2.parquet"]
    with pytest.raises(SpecError, match=r"^data: s3://ids/'part 2\.parquet': expected letters"):
        find_tokens(spec)


def test_uploads_that_were_left_over_are_found_and_aborted(moto: int) -> None:
    store = fresh("s3")
    folder = store.url.removeprefix(f"s3://{BUCKET}/")
    client = boto3.client("s3", endpoint_url=f"http://{HOST}:{moto}")
    for name in ("gen/1/a", "gen/2/b", "other/c"):
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{folder}/{name}")
    client.put_object(Bucket=BUCKET, Key=f"{folder}/gen/1/.tmp-0123456789abcdef", Body=b"half a create")
    client.put_object(Bucket=BUCKET, Key=f"{folder}/gen/1/.tmp-notes", Body=b"somebody else's")
    store.put("gen/1/whole", b"1")

    assert list(abandoned_uploads(store, "gen", before=LONG_AGO)) == []
    found = abandoned_uploads(store, "gen", before=FAR_FUTURE)
    assert sorted(upload.name for upload in found) == ["gen/1/.tmp-0123456789abcdef", "gen/1/a", "gen/2/b"]
    abort_uploads(store, found)
    abort_uploads(store, found)  # what is gone is no error
    assert list(abandoned_uploads(store, "gen", before=FAR_FUTURE)) == []
    assert [upload.name for upload in abandoned_uploads(store, "other", before=FAR_FUTURE)] == ["other/c"]
    assert list(store.list("gen")) == ["gen/1/whole"]


def test_processes_that_have_just_stored_something_end_well(moto: int) -> None:
    code = f"from checkpointing.stores.opening import open_store as o; o('{fresh('s3').url}').put('a', b'1')"
    ended = [
        subprocess.run([sys.executable, "-c", code], cwd=servers.ROOT, timeout=60, check=False).returncode
        for _ in range(10)
    ]
    assert ended == [0] * 10


def test_the_memory_has_no_uploads_left_over() -> None:
    store = MemoryStore()
    assert list(abandoned_uploads(store, "gen", before=FAR_FUTURE)) == []
    abort_uploads(store, [])
