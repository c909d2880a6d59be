"""The contract of a store over real servers: S3 as moto and as OpenStack Swift speak it, and Azure.

Swift checks whether an object exists and then writes, in two steps: of several who create one name in the same
moment more than one may win. So it is left out of the races, and a run's log must not stand on it.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

from checkpointing.buckets import open_objects
from checkpointing.store import Conflict, Denied, Store, StoreError, open_store
from checkpointing.uploads import abandoned_uploads, abort_uploads
from tests.contract import RaceContract, StoreContract
from tests.live import servers
from tests.live.servers import BUCKET, HOST, S3_KEYS, SWIFT_KEYS
from tests.proxy import Proxy

FAR_FUTURE = datetime.now(UTC) + timedelta(days=365)


def fresh(scheme: str) -> Store:
    """A prefix that nobody used."""
    return open_store(f"{scheme}://{BUCKET}/tests/{secrets.token_hex(8)}")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


class TestMoto(StoreContract, RaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with servers.moto(tmp_path_factory.mktemp("moto")) as port:
            url = f"http://{HOST}:{port}"
            servers.make_bucket(url, S3_KEYS)
            with environment({**S3_KEYS, "AWS_ENDPOINT_URL": url}):
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
