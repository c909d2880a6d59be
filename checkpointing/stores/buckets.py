"""Opens ``s3://bucket/prefix``, ``az://container/prefix`` or ``gs://bucket/prefix`` as a store.

Credentials, endpoint and region come from the places where each cloud's own tools look: environment
variables, the usual files, the machine's role. None of them appears in a URL, a message or a ``repr``.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from checkpointing.stores.contract import Store, StoreError, Upload, is_name
from checkpointing.stores.objects import Bucket, ObjectStore, TransferPace
from checkpointing.stores.refusals import NO_KEYS, ServerAnswer, refusal
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from checkpointing.stores.settings import check_settings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

_URL = re.compile(r"(s3|gs|az)://([a-z0-9][a-z0-9._-]{1,220})(?:/(.*?))?/?")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL")
_CREDENTIALS_LAST = timedelta(minutes=5)

# Short, because ``RetryingStore`` does the waiting over minutes, where it can be seen and bounded.
_RETRIES: "RetryConfig" = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}
# For transfers in parts, where each part is repeated by itself. Without enough repetitions one part that
# fails sends a whole file again. The library counts the time from the request's start, and a part may take as
# long as a request may; what stands still is given up much earlier, by its progress.
_RETRIES_OF_PARTS: "RetryConfig" = {
    "max_retries": 12,
    "retry_timeout": timedelta(hours=1),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
# Limit for one request. The library's 30 s would end every chunk on a link of 1 MB/s and resend it for
# ever.
_REQUEST_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """The parts of a bucket's URL. ``prefix`` may be empty."""

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.prefix) if part)


def open_bucket(url: str, *, patience: RetryLimits | None = None) -> Store:
    """Returns the store without touching it. The store waits for a service that is away; only ``probe``
    answers at once. A ``patience`` that counts from the call also bounds a transfer of which nothing moves.
    """
    pace = TransferPace(stall_s=patience.budget_s) if patience and patience.is_from_start else None
    return RetryingStore(open_objects(url, pace=pace), patience)


def open_objects(url: str, *, pace: TransferPace | None = None) -> ObjectStore:
    address = _parse(url)
    check_settings(address.scheme)
    try:
        return ObjectStore(
            _bucket(address, _RETRIES),
            address.url,
            parts=_bucket(address, _RETRIES_OF_PARTS),
            multiparts=S3Multiparts(address) if address.scheme == "s3" else None,
            pace=pace,
        )
    except (BaseError, ValueError) as error:
        raise StoreError(f"store: {address.url}: {_first_line(error)}") from None


def _parse(url: str) -> BucketAddress:
    found = _URL.fullmatch(url)
    if not found or (found[3] and not is_name(found[3])):
        # The message does not repeat the URL: the part that does not fit may be a password.
        raise StoreError("store: expected s3://bucket/prefix, az://container/prefix or gs://bucket/prefix")
    return BucketAddress(scheme=found[1], bucket=found[2], prefix=found[3] or "")


def _bucket(address: BucketAddress, retries: "RetryConfig") -> Bucket:
    match address.scheme:
        case "s3":
            return _s3(address, retries)
        case "az":
            return _azure(address, retries)
        case _:
            return _google(address, retries)


def _s3(address: BucketAddress, retries: "RetryConfig") -> S3Store:
    return S3Store(
        address.bucket,
        prefix=address.prefix or None,
        config=_s3_config(),
        client_options=_s3_options(),
        retry_config=retries,
        credential_provider=_aws_credentials,
    )


def _azure(address: BucketAddress, retries: "RetryConfig") -> AzureStore:
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in _AZURE_ENDPOINTS)
    return AzureStore(
        address.bucket,
        prefix=address.prefix or None,
        client_options=_options(is_plain=is_plain),
        retry_config=retries,
    )


def _google(address: BucketAddress, retries: "RetryConfig") -> GCSStore:
    return GCSStore(
        address.bucket,
        prefix=address.prefix or None,
        client_options=_options(is_plain=False),
        retry_config=retries,
    )


def _s3_config() -> "S3Config":
    config: S3Config = {
        "region": os.environ.get("AWS_REGION") or boto3.Session().region_name or "us-east-1",
        # Some services that call themselves compatible lack bulk deletion.
        "disable_bulk_delete": True,
        "copy_if_not_exists": "multipart",
    }
    if endpoint := _aws_endpoint():
        config["endpoint"] = endpoint
    return config


def _s3_options() -> "ClientConfig":
    options = _options(is_plain=_aws_endpoint().startswith("http://"))
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = Path(bundle).read_bytes()
    return options


def _options(*, is_plain: bool) -> "ClientConfig":
    """Allows plain HTTP only if the user's endpoint asks for it."""
    return {"allow_http": is_plain, "timeout": _REQUEST_TIMEOUT}


def _aws_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _aws_credentials() -> "S3Credential":
    """Looks the credentials up from the start every few minutes, so keys that were renewed in a file are
    found.
    """
    found = boto3.Session().get_credentials()
    if found is None:
        raise LookupError("no credentials")
    frozen = found.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
    }


class S3Multiparts:
    """The multipart uploads that were begun below a prefix of an S3 bucket and never completed."""

    def __init__(self, address: BucketAddress) -> None:
        self._address = address
        self._folder = f"{address.prefix}/" if address.prefix else ""

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        with self._as_store_errors(prefix):
            pages = _s3_client().get_paginator("list_multipart_uploads")
            found = pages.paginate(Bucket=self._address.bucket, Prefix=f"{self._folder}{prefix}/")
            uploads = [self._upload(entry) for page in found for entry in page.get("Uploads", ())]
        return [upload for upload in uploads if upload.started < before]

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        client = _s3_client()
        for upload in uploads:
            with self._as_store_errors(upload.name), suppress(client.exceptions.NoSuchUpload):
                client.abort_multipart_upload(
                    Bucket=self._address.bucket, Key=self._folder + upload.name, UploadId=upload.id
                )

    def _upload(self, entry: Mapping[str, Any]) -> Upload:
        return Upload(
            name=entry["Key"].removeprefix(self._folder), id=entry["UploadId"], started=entry["Initiated"]
        )

    @contextmanager
    def _as_store_errors(self, name: str) -> Iterator[None]:
        place = f"store: {self._address.url}: {name}"
        try:
            yield
        except ClientError as error:
            raise refusal(_answer(error), place=place, is_write=True) from None
        except NoCredentialsError:
            raise refusal(ServerAnswer(code=NO_KEYS), place=place, is_write=True) from None
        except BotoCoreError as error:
            raise refusal(ServerAnswer(detail=type(error).__name__), place=place, is_write=True) from None


def _s3_client() -> Any:
    """Makes a new client for each use, because keys and endpoint may have changed.

    Integrity trailers are sent only if the service requires them. Ceph and others refuse requests with such
    trailers, and what we store carries digests of its own.
    """
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 3},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if _aws_endpoint() else {},
    )
    return boto3.Session().client(
        "s3", config=config, endpoint_url=_aws_endpoint() or None, region_name=_s3_config()["region"]
    )


def _answer(error: ClientError) -> ServerAnswer:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return ServerAnswer(status=status, code=error.response.get("Error", {}).get("Code", ""))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
