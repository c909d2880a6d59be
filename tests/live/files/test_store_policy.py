"""``cluster/store_policies/`` on a server that enforces them: enough for each role, and nothing too many."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from checkpointing.format.manifest import file_name
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.repository import Repository, generation_name
from checkpointing.log.history import Pin
from checkpointing.log.log import Log
from checkpointing.log.trust import slot_name
from checkpointing.stores.buckets import open_objects
from checkpointing.stores.contract import Conflict, Denied, Missing
from checkpointing.stores.objects import ObjectStore, TransferPace
from jobs.doctor.security.bucket_trial import try_bucket
from tests.live import servers
from tests.live.servers import BUCKET, HOST

POLICIES = Path(__file__).parents[3] / "cluster" / "store_policies"
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


def policy_of(role: str) -> str:
    return (POLICIES / f"{role}.json").read_text().replace("BUCKET", BUCKET)


def allowed_actions(role: str) -> list[str]:
    statements = json.loads(policy_of(role))["Statement"]
    return sorted({action for one in statements if one["Effect"] == "Allow" for action in one["Action"]})


def use_everything(place: Place) -> None:
    """All that a training asks of S3, each kind of call once. Raises what the store raises."""
    store = _store("longhaul")
    folder = f"runs/{secrets.token_hex(8)}/gen"
    small, large, listed = f"{folder}/small", f"{folder}/large", f"{folder}/listed/one"
    store.put(small, b"1")
    store.create(large, b"2" * (PART + 1))
    with pytest.raises(Conflict):
        store.create(large, b"3" * (PART + 1))
    assert (store.get(small), store.get_range(large, PART, memoryview(bytearray(2)))) == (b"1", 1)
    assert store.size(large) == PART + 1
    for ask in (store.get, store.size):
        with pytest.raises(Missing):
            ask(f"{folder}/none")
    store.put(listed, b"")
    assert list(store.list(f"{folder}/listed")) == [listed]
    left = place.owner.create_multipart_upload(Bucket=BUCKET, Key=f"longhaul/{folder}/uploads/left")
    found = store.abandoned_uploads(f"{folder}/uploads", before=FAR_FUTURE)
    assert [upload.id for upload in found] == [left["UploadId"]]
    store.abort_uploads(found)
    for name in (small, large, listed):
        store.delete(name)


def left_run(place: Place) -> tuple[str, str]:
    """A run with a record, and with the remains of a save whose attempt is over; and the record's name."""
    run = secrets.token_hex(8)
    place.allow(EVERYTHING)
    repository = Repository(_store("longhaul"), run)
    term = repository.take_over("first")
    repository.store.put(f"runs/{run}/gen/{generation_name(5, term, 's1')}/{file_name(0)}", b"half")
    repository.take_over("second")
    return run, slot_name(run, 1)


def test_a_trainers_rights_are_enough(place: Place) -> None:
    place.allow(policy_of("trainer"))
    use_everything(place)
    _store("longhaul").probe()


@pytest.mark.parametrize("action", allowed_actions("trainer"))
def test_without_any_one_of_its_actions_a_trainer_is_refused(place: Place, action: str) -> None:
    policy = json.loads(policy_of("trainer"))
    for statement in policy["Statement"]:
        statement["Action"] = [name for name in statement["Action"] if name != action]
    place.allow(json.dumps({**policy, "Statement": [one for one in policy["Statement"] if one["Action"]]}))
    with pytest.raises(Denied):
        use_everything(place)


@pytest.mark.parametrize("role", ["trainer", "janitor"])
def test_who_appends_to_the_log_neither_rewrites_nor_deletes_it(place: Place, role: str) -> None:
    run, record = left_run(place)
    place.allow(policy_of(role))
    store = _store("longhaul")
    before = store.get(record)
    Repository(store, run).append(Pin(name="x"))

    for attack in (lambda: store.put(record, b"forged"), lambda: store.delete(record)):
        with pytest.raises(Denied):
            attack()
    with pytest.raises(Denied):  # As a whole, in parts: begun without the condition.
        store.put(record, b"f" * (PART + 1))
    with pytest.raises(Conflict):
        store.create(record, b"forged")
    assert store.get(record) == before


def test_a_trainer_deletes_no_result_no_spec_and_no_hint(place: Place) -> None:
    place.allow(policy_of("trainer"))
    store = _store("longhaul")
    for name in ("sweeps/s/runs/r/result.json", "runs/m/spec.json", "runs/m/hint.json", "imports/a.json"):
        with pytest.raises(Denied):
            store.delete(name)


def test_a_janitor_collects_garbage_and_writes_nothing_but_the_log(place: Place) -> None:
    run, _ = left_run(place)
    place.allow(policy_of("janitor"))
    repository = Repository(_store("longhaul"), run)
    repository.refresh()
    garbage = find_garbage(repository, now=FAR_FUTURE)
    assert len(garbage.remainders) == 1

    remove(repository, garbage)

    assert repository.stored_generations() == []
    for name in (f"runs/{run}/gen/a/manifest.json", f"runs/{run}/spec.json", "sweeps/s/sweep.json"):
        with pytest.raises(Denied):
            repository.store.put(name, b"{}")
    with pytest.raises(Denied):
        repository.store.delete("sweeps/s/runs/r/result.json")


def test_a_reader_reads_and_changes_nothing(place: Place) -> None:
    run, record = left_run(place)
    place.allow(policy_of("reader"))
    store = _store("longhaul")

    assert Log(store, run).read().owner == "second"
    for attack in (
        lambda: store.put(f"runs/{run}/status.json", b"{}"),
        lambda: store.create(slot_name(run, 99), b"{}"),
        lambda: store.delete(record),
        lambda: store.abandoned_uploads("runs", before=FAR_FUTURE),
    ):
        with pytest.raises(Denied):
            attack()


def test_the_doctor_finds_out_what_credentials_allow(place: Place) -> None:
    place.allow(policy_of("trainer"))
    trainer = try_bucket(f"s3://{BUCKET}/longhaul", _at_once)
    place.allow(EVERYTHING)
    everything = try_bucket(f"s3://{BUCKET}/longhaul", _at_once)

    assert trainer and everything
    assert (trainer.allowed, len(trainer.refused), trainer.failed) == ((), 3, None)
    assert (len(everything.allowed), everything.refused, everything.failed) == (3, (), None)


@pytest.mark.parametrize("prefix", ["other", "longhaulier"])
def test_what_is_outside_the_prefix_is_closed(place: Place, prefix: str) -> None:
    place.allow(policy_of("trainer"))
    store = _store(prefix)
    name = "runs/r/gen/a"
    for refused in (lambda: store.put(name, b""), lambda: store.get(name), lambda: store.delete(name)):
        with pytest.raises(Denied):
            refused()


def _at_once(url: str) -> ObjectStore:
    return open_objects(url)


def _store(prefix: str) -> ObjectStore:
    return open_objects(f"s3://{BUCKET}/{prefix}", pace=TransferPace(chunk_bytes=PART))


def _user(iam: Any, name: str) -> tuple[str, str]:
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="store", PolicyDocument=EVERYTHING)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return made["AccessKeyId"], made["SecretAccessKey"]


def _session(key: str, secret: str) -> boto3.Session:
    return boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name=REGION)
