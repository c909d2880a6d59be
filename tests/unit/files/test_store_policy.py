"""``cluster/store_policies/``: exactly what each role asks of S3, found by reading the calls of our store."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ROLES = ("trainer", "reader", "janitor")
# Of S3, per call of the library. To HEAD an object S3 wants the right to get it, and without the right to
# list the bucket it says of a missing one "denied" instead of "missing". What moves in parts is begun, filled
# and completed with the right to put; the library aborts what it could not complete.
NEEDS = {
    "obstore.put": {"s3:PutObject", "s3:AbortMultipartUpload"},
    "obstore.get": {"s3:GetObject", "s3:ListBucket"},
    "obstore.head": {"s3:GetObject", "s3:ListBucket"},
    "obstore.copy": {"s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"},
    "obstore.list": {"s3:ListBucket"},
    "obstore.delete": {"s3:DeleteObject"},
    "client.list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "client.abort_multipart_upload": {"s3:AbortMultipartUpload"},
}
OF_THE_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}


def calls(source: str) -> set[str]:
    """Of obstore's functions, also those handed on; of boto3's client, its methods and paginators."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("obstore", "client"):
            found.add(ast.unparse(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".get_paginator"):
            found.add(f"client.{ast.literal_eval(node.args[0])}")
    return found - {"client.exceptions"}


def statements(role: str, effect: str = "Allow") -> list[dict[str, Any]]:
    policy = json.loads((ROOT / f"cluster/store_policies/{role}.json").read_text())
    return [one for one in policy["Statement"] if one["Effect"] == effect]


def allowed(role: str) -> dict[str, set[str]]:
    """The actions by resource."""
    found: dict[str, set[str]] = {}
    for one in statements(role):
        for resource in [one["Resource"]] if isinstance(one["Resource"], str) else one["Resource"]:
            found.setdefault(resource, set()).update(one["Action"])
    return found


def test_a_trainer_may_do_what_the_store_calls_and_nothing_else() -> None:
    called = set().union(*(calls(path.read_text()) for path in (ROOT / "checkpointing").rglob("*.py")))
    assert called == set(NEEDS)
    assert set().union(*allowed("trainer").values()) == set().union(*(NEEDS[call] for call in called))


def test_a_reader_may_read_alone_and_a_janitor_no_more_than_a_trainer() -> None:
    assert set().union(*allowed("reader").values()) == {"s3:GetObject", "s3:ListBucket"}
    assert set().union(*allowed("janitor").values()) <= set().union(*allowed("trainer").values())


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("obstore.put(bucket, name)", "obstore.put"),
        ("partial(obstore.rename, bucket)", "obstore.rename"),
        ("client.put_object(Bucket=b)", "client.put_object"),
        ("pages = _s3_client().get_paginator('list_objects_v2')", "client.list_objects_v2"),
    ],
)
def test_a_new_call_would_be_noticed(source: str, call: str) -> None:
    assert calls(source) == {call}


@pytest.mark.parametrize("role", ROLES)
def test_names_are_the_buckets_and_bytes_are_those_below_the_prefix(role: str) -> None:
    bucket, prefix = "arn:aws:s3:::BUCKET", "arn:aws:s3:::BUCKET/longhaul/"
    assert allowed(role)[bucket] <= OF_THE_BUCKET
    for resource, actions in allowed(role).items():
        assert resource == bucket or (resource.startswith(prefix) and actions.isdisjoint(OF_THE_BUCKET))


@pytest.mark.parametrize("role", ROLES)
def test_no_action_is_a_wildcard(role: str) -> None:
    both = [*statements(role), *statements(role, "Deny")]
    assert not any("*" in action for one in both for action in one["Action"])


@pytest.mark.parametrize("role", ["trainer", "janitor"])
def test_the_log_is_denied_to_who_may_write(role: str) -> None:
    denied = {one["Action"][0]: one for one in statements(role, "Deny")}
    assert {one["Resource"] for one in denied.values()} == {"arn:aws:s3:::BUCKET/longhaul/runs/*/log/*"}
    assert "Condition" not in denied["s3:DeleteObject"]
    # Put, unless as a creation: its request has the header If-None-Match.
    assert denied["s3:PutObject"]["Condition"] == {"Null": {"s3:if-none-match": "true"}}
