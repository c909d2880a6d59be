"""How S3, Azure and Google refuse what another request for the same name is in the way of: asked again."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from checkpointing.stores.contract import Conflict, StoreError, Undecided
from checkpointing.stores.objects import Bucket, ObjectStore
from checkpointing.stores.retrying import RetryingStore
from tests.live import servers
from tests.live.servers import BUCKET, HOST

GOOGLE = (
    '{"gcs_base_url": "URL", "disable_oauth": true, "client_email": "", "private_key": "", '
    '"private_key_id": ""}'
)


@dataclass
class Service:
    """Objects by path. The next write is answered with ``refusal``, with its effect or without."""

    refusal: tuple[int, str] | None = None
    lands: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)
    num_writes: int = 0

    def write(self, path: str, data: bytes, *, is_create: bool) -> tuple[int, str]:
        refusal, self.refusal = self.refusal, None
        self.num_writes += 1
        if is_create and path in self.objects and not refusal:
            return 412, "PreconditionFailed"
        if not refusal or self.lands:
            self.objects[path] = data
        return refusal or (201, "")


class Requests(BaseHTTPRequestHandler):
    service: Service

    def do_PUT(self) -> None:
        conditions = (self.headers.get("if-none-match"), self.headers.get("x-goog-if-generation-match"))
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        status, code = self.service.write(self._place, data, is_create=conditions != (None, None))
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")

    def do_GET(self) -> None:
        found = self.service.objects.get(self._place)
        if found is None:
            self._answer(404, b"")
        elif bounds := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
            first, last = int(bounds[1]), min(int(bounds[2]), len(found) - 1)
            self._answer(206, found[first : last + 1], f"bytes {first}-{last}/{len(found)}")
        else:
            self._answer(200, found)

    @property
    def _place(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self, status: int, body: bytes, content_range: str = "") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Length", str(len(body))),
            ("ETag", '"1"'),
            ("Last-Modified", formatdate(usegmt=True)),
            ("x-goog-generation", "1"),
            ("Content-Range", content_range),
        ):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests tell what matters."""


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    service = Service()
    server = ThreadingHTTPServer((HOST, 0), type("OfOne", (Requests,), {"service": service}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield service, f"http://{HOST}:{server.server_port}"
    server.shutdown()
    server.server_close()


def bucket(kind: str, url: str) -> Bucket:
    options: Any = {"allow_http": True}
    retries: Any = {"max_retries": 0}
    match kind:
        case "s3":
            keys: Any = {"endpoint": url, "access_key_id": "a", "secret_access_key": "b", "region": "r"}
            return S3Store(BUCKET, config=keys, client_options=options, retry_config=retries)
        case "azure":
            return AzureStore(
                BUCKET,
                account_name=servers.AZURE_ACCOUNT,
                account_key=servers.AZURE_KEY,
                endpoint=f"{url}/{servers.AZURE_ACCOUNT}",
                client_options=options,
                retry_config=retries,
            )
        case _:
            key = GOOGLE.replace("URL", url)
            return GCSStore(BUCKET, service_account_key=key, client_options=options, retry_config=retries)


REFUSALS = [
    ("s3", 409, "ConditionalRequestConflict"),
    ("s3", 409, "OperationAborted"),
    ("s3", 412, "PreconditionFailed"),
    ("azure", 409, "BlobAlreadyExists"),
    ("azure", 412, "ConditionNotMet"),
    ("google", 412, "PreconditionFailed"),
    ("google", 429, "SlowDown"),
    ("google", 503, "ServiceUnavailable"),
]


@pytest.mark.parametrize("lands", [False, True], ids=["without effect", "with effect"])
@pytest.mark.parametrize(("kind", "status", "code"), REFUSALS)
def test_a_write_that_is_refused_once_is_asked_again_and_is_the_writers_own(
    service: tuple[Service, str], kind: str, status: int, code: str, lands: bool
) -> None:
    service_, url = service
    inner = ObjectStore(bucket(kind, url), f"{kind}://{BUCKET}")
    store = RetryingStore(inner, sleep=lambda _: None)
    for name, write in (("log/1", store.create), ("log/2", store.put)):
        service_.refusal, service_.lands = (status, code), lands
        write(name, b"mine")
        assert service_.refusal is None
        assert store.get(name) == b"mine"
    with pytest.raises(Conflict, match="log/1 exists already"):
        store.create("log/1", b"another's")
    assert store.get("log/1") == b"mine"


@pytest.mark.parametrize(("kind", "status", "code"), [found for found in REFUSALS if found[1] in (409, 412)])
def test_no_put_is_told_that_its_object_exists_already(
    service: tuple[Service, str], kind: str, status: int, code: str
) -> None:
    service_, url = service
    store = ObjectStore(bucket(kind, url), f"{kind}://{BUCKET}")
    service_.refusal = (status, code)
    with pytest.raises(Undecided, match=f"{status} {code}; it may work again later"):
        store.put("log/1", b"mine")


def test_a_panic_of_the_library_is_an_error_of_the_store_and_names_no_words_of_it() -> None:
    """Its panics are no exceptions, and ended every thread that catches those."""
    broken = S3Store(
        BUCKET,
        config={
            "endpoint": "no url with a secret",
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    store = ObjectStore(broken, "s3://bucket/p")
    for ask in (
        lambda: store.get("f/a"),
        lambda: store.put("f/a", b"1"),
        lambda: store.create("f/a", b"1"),
        lambda: store.get_range("f/a", 0, memoryview(bytearray(1))),
        lambda: store.size("f/a"),
        lambda: list(store.list("f")),
        lambda: store.delete("f/a"),
    ):
        with pytest.raises(
            StoreError, match=r"^store: s3://bucket/p: f.*: the library of object stores broke"
        ):
            ask()
