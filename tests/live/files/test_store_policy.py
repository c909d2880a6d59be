"""``cluster/store-policy.json`` on a server that enforces it: enough for our store, and nothing too many."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from checkpointing.stores.buckets import open_objects
from checkpointing.stores.contract import Conflict, Denied, Missing
from checkpointing.stores.objects import ObjectStore, TransferPace
from tests.live import servers
from tests.live.servers import BUCKET, HOST

POLICY = (Path(__file__).parents[3] / "cluster" / "store-policy.json").read_text().replace("BUCKET", BUCKET)
ACTIONS = sorted({action for statement in json.loads(POLICY)["Statement"] for action in statement["Action"]})
EVERYTHING = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
REGION = "us-east-1"
PART = 5 << 20  # the least that S3 takes as one
FAR_FUTURE = datetime.now(UTC) + timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``admin`` makes policies; the environment holds the keys of the user under test."""

    admin: Any
    owner: Any

    def allow(self, policy: str) -> None:
        self.admin.put_user_policy(UserName="longhaul", PolicyName="store", PolicyDocument=policy)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        servers.moto(tmp_path_factory.mktemp("moto"), unchecked_requests=7) as port,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")
        patch.setenv("AWS_REGION", REGION)
        bare = _session("any", "keys")
        keys = {name: _user(bare.client("iam"), name) for name in ("longhaul", "owner")}
        bare.client("s3").create_bucket(Bucket=BUCKET)
        owner = _session(*keys["owner"])
        patch.setenv("AWS_ACCESS_KEY_ID", keys["longhaul"][0])
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys["longhaul"][1])
        yield Place(admin=owner.client("iam"), owner=owner.client("s3"))


def use_everything(place: Place) -> None:
    """All that our store asks of S3, each kind of call once. Raises what the store raises."""
    prefix = f"longhaul/{secrets.token_hex(8)}"
    store = _store(prefix)
    store.put("small", b"1")
    store.create("large", b"2" * (PART + 1))
    with pytest.raises(Conflict):
        store.create("large", b"3" * (PART + 1))
    assert (store.get("small"), store.get_range("large", PART, memoryview(bytearray(2)))) == (b"1", 1)
    assert store.size("large") == PART + 1
    for ask in (store.get, store.size):
        with pytest.raises(Missing):
            ask("none")
    store.put("listed/one", b"")
    assert list(store.list("listed")) == ["listed/one"]
    left = place.owner.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/runs/left")
    found = store.abandoned_uploads("runs", before=FAR_FUTURE)
    assert [upload.id for upload in found] == [left["UploadId"]]
    store.abort_uploads(found)
    for name in ("small", "large", "listed/one"):
        store.delete(name)


def test_it_is_enough(place: Place) -> None:
    place.allow(POLICY)
    use_everything(place)


@pytest.mark.parametrize("action", ACTIONS)
def test_without_any_one_of_its_actions_the_store_is_refused(place: Place, action: str) -> None:
    policy = json.loads(POLICY)
    for statement in policy["Statement"]:
        statement["Action"] = [name for name in statement["Action"] if name != action]
    place.allow(json.dumps({**policy, "Statement": [one for one in policy["Statement"] if one["Action"]]}))
    with pytest.raises(Denied):
        use_everything(place)


@pytest.mark.parametrize("prefix", ["other", "longhaulier"])
def test_what_is_outside_the_prefix_is_closed(place: Place, prefix: str) -> None:
    place.allow(POLICY)
    store = _store(prefix)
    for refused in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: store.delete("a")):
        with pytest.raises(Denied):
            refused()


def _store(prefix: str) -> ObjectStore:
    return open_objects(f"s3://{BUCKET}/{prefix}", pace=TransferPace(chunk_bytes=PART))


def _user(iam: Any, name: str) -> tuple[str, str]:
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="store", PolicyDocument=EVERYTHING)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return made["AccessKeyId"], made["SecretAccessKey"]


def _session(key: str, secret: str) -> boto3.Session:
    return boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name=REGION)
