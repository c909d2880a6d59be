"""``cluster/store-policy.json``: exactly what our store asks of S3, found by reading its calls."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
POLICY: dict[str, Any] = json.loads((ROOT / "cluster/store-policy.json").read_text())
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


def allowed() -> dict[str, set[str]]:
    return {statement["Resource"]: set(statement["Action"]) for statement in POLICY["Statement"]}


def test_it_allows_what_the_store_calls_and_nothing_else() -> None:
    called = set().union(*(calls(path.read_text()) for path in (ROOT / "checkpointing").rglob("*.py")))
    assert called == set(NEEDS)
    assert set().union(*allowed().values()) == set().union(*(NEEDS[call] for call in called))


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


def test_names_are_the_buckets_and_bytes_are_those_below_the_prefix() -> None:
    bucket, prefix = "arn:aws:s3:::BUCKET", "arn:aws:s3:::BUCKET/longhaul/*"
    assert allowed()[bucket] == OF_THE_BUCKET
    assert allowed()[prefix].isdisjoint(OF_THE_BUCKET)
    assert set(allowed()) == {bucket, prefix}


def test_it_has_no_wildcard_and_only_allows() -> None:
    assert not any("*" in action for actions in allowed().values() for action in actions)
    assert {statement["Effect"] for statement in POLICY["Statement"]} == {"Allow"}
