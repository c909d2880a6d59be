"""What ``longhaul doctor --security`` sees of this machine, and what it says of it: a line a finding."""

import argparse
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from checkpointing.stores.contract import Buffer, Denied, Store, StoreError
from checkpointing.stores.memory import MemoryStore
from jobs.doctor.examination import Finding
from jobs.doctor.security import bucket_trial, command
from jobs.doctor.security.bucket_trial import MARK, RECORD, try_bucket
from jobs.doctor.security.checks import judge
from jobs.doctor.security.closed_folders import looked_at
from jobs.doctor.security.command import as_text, security
from jobs.doctor.security.exposure import Exposure, Folder, Listener, LooseSecret, Trial
from jobs.doctor.security.listening import listeners, open_path, place_of
from jobs.doctor.security.loose_secrets import in_environment_files, in_spec, on_command_lines
from tests.conftest import Golden
from tests.unit.printed import checked

SECRET = "hunter2-hunter2-hunter2"
RAYLET = Listener(
    address="0.0.0.0", port=6379, pid=7, process="gcs_server", owner="ray", asks_for_token=False
)


def problems(seen: Exposure) -> list[Finding]:
    found = [finding for finding in judge(seen) if finding.level != "ok"]
    assert all(finding.remedy for finding in found)
    return found


# What is seen.


@pytest.mark.parametrize(
    ("packed", "place"),
    [
        (socket.inet_aton("127.0.0.1"), "127.0.0.1"),
        (socket.inet_aton("10.1.2.3"), "10.1.2.3"),
        (socket.inet_pton(socket.AF_INET6, "::1"), "::1"),
        (socket.inet_pton(socket.AF_INET6, "fe80::12"), "fe80::12"),
        (socket.inet_pton(socket.AF_INET6, "::ffff:10.0.0.1"), "10.0.0.1"),
    ],
)
def test_an_address_is_read_as_the_kernel_writes_it(packed: bytes, place: str) -> None:
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    assert place_of("".join(f"{word:08X}" for word in words) + ":1F90") == (place, 8080)


def test_a_socket_of_this_process_is_found_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.2", 0)) as other:
        ports = {one.getsockname()[1]: one.getsockname()[0] for one in (here, other)}
        found = {one.port: one.address for one in listeners() if one.port in ports}
    assert found == ports


def process(proc: Path, pid: int, words: list[str], *, inode: int, environment: str = "") -> None:
    """A process as ``/proc`` shows it, with one socket."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to(f"socket:[{inode}]")
    (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    (folder / "environ").write_bytes("\0".join(environment.split()).encode())


@pytest.mark.parametrize(
    ("environment", "asks"),
    [("A=b RAY_AUTH_MODE=token", True), ("A=b", False), ("", None), ("\0\0 A=b", None)],
)
def test_rays_processes_are_known_and_whether_they_ask_for_a_token(
    tmp_path: Path, environment: str, asks: bool | None
) -> None:
    (tmp_path / "net").mkdir()
    line = "  0: 0100007F:18EB 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1"
    lines = ["head", line.format(state="0A", inode=42), line.format(state="01", inode=43)]
    (tmp_path / "net/tcp").write_text("\n".join(lines))
    process(tmp_path, 7, ["/x/ray/core/src/ray/gcs/gcs_server"], inode=42, environment=environment)
    process(tmp_path, 8, ["/x/ray/core/src/ray/raylet/raylet"], inode=43)

    [found] = listeners(tmp_path)

    assert (found.address, found.port, found.pid) == ("127.0.0.1", 6379, 7)
    assert (found.process, found.owner, found.asks_for_token) == ("gcs_server", "ray", asks)


class Pages(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        body = self.answers.get(self.path)
        self.send_response(401 if body is None else 200)
        self.end_headers()
        self.wfile.write(b'{"error": "no token"}' if body is None else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answers", "address", "path"),
    [
        ({"/api/jobs/": b"[]"}, "127.0.0.1", "/api/jobs/"),
        # It is asked where it listens: something else may listen at the same port of 127.0.0.1.
        ({"/api/jobs/": b"[]"}, "127.0.0.2", None),
        # Ray's exporter gives its figures for every path.
        ({"/api/jobs/": b"# HELP x", "/metrics": b"# HELP x"}, "0.0.0.0", "/metrics"),
        ({"/api/jobs/": b"# HELP x", "/metrics": b"# HELP x"}, "127.0.0.1", None),
    ],
)
def test_a_page_that_is_given_without_a_token_is_seen(
    pages: int, monkeypatch: pytest.MonkeyPatch, answers: dict[str, bytes], address: str, path: str | None
) -> None:
    monkeypatch.setattr(Pages, "answers", answers)
    assert open_path(address, pages) == path


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("dashboard/dashboard.py", "/metrics"),
        ("dashboard/agent.py", "/metrics"),
        ("autoscaler/_private/monitor.py", "/metrics"),
        ("_private/workers/default_worker.py", None),
    ],
)
def test_those_of_rays_processes_that_serve_pages_are_asked(
    pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, path: str | None
) -> None:
    monkeypatch.setattr(Pages, "answers", {"/api/jobs/": b"# HELP x", "/metrics": b"# HELP x"})
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(f"head\n 0: 00000000:{pages:04X} 00000000:0000 0A 0 0 0 0 0 42 1")
    process(tmp_path, 7, ["python", "-u", f"/x/site-packages/ray/{program}"], inode=42)

    [found] = listeners(tmp_path)

    assert (found.process, found.open_path) == (Path(program).name, path)


def test_nobody_at_the_port_gives_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert open_path("127.0.0.1", port) is None


@pytest.mark.parametrize(
    ("above", "mode", "writers", "readers"),
    [
        (0o755, 0o777, "everybody", "everybody"),
        (0o755, 0o775, "the group", "everybody"),
        (0o755, 0o755, "", "everybody"),
        (0o700, 0o777, "", ""),
        (0o750, 0o777, "the group", "the group"),
        (0o755, 0o700, "", ""),
        # Who may rename it can put another in its place; not in a folder with the sticky bit.
        (0o777, 0o700, "everybody", ""),
        (0o775, 0o700, "the group", ""),
        (0o1777, 0o700, "", ""),
    ],
)
def test_who_may_write_is_known_with_all_folders_above(
    open_folder: Path, above: int, mode: int, writers: str, readers: str
) -> None:
    folder = open_folder / "above" / "folder"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(above)

    [found] = looked_at([(folder, "it", False), (folder / "gone", "it", False)])

    assert (found.writers, found.readers) == (writers, readers)


@pytest.fixture
def open_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that everybody reaches, as far as the checks know: pytest's own is closed."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    closed = [*folder.parents]
    real = Path.stat

    def stat(path: Path, **more: bool) -> object:
        return real(Path("/")) if path in closed else real(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    return folder


def test_secrets_in_environment_files_are_named_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "store.env").write_text(f"AWS_SECRET_ACCESS_KEY={SECRET}\nAWS_REGION=us-east-1\n")
    (tmp_path / ".env").write_text(
        f"export WANDB_API_KEY='{SECRET}'\nRAY_AUTH_TOKEN_PATH=/etc/longhaul/token\n"
    )
    (tmp_path / "closed.env").write_text(f"PASSWORD={SECRET}\n")
    for name, mode in ((".env", 0o644), ("store.env", 0o640), ("closed.env", 0o600)):
        (tmp_path / name).chmod(mode)

    found = list(in_environment_files([tmp_path]))

    assert [(one.place, one.name) for one in found] == [
        (str(tmp_path / ".env"), "WANDB_API_KEY"),
        (str(tmp_path / "store.env"), "AWS_SECRET_ACCESS_KEY"),
    ]
    assert SECRET not in repr(found)


def test_secrets_in_a_spec_are_named_where_others_can_read_it(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"environment: {{HF_TOKEN: {SECRET}, NCCL_DEBUG: WARN}}\nstore: https://me:{SECRET}@host/x\nseed: 1\n"
    )
    spec.chmod(0o644)
    assert [one.name for one in in_spec(spec)] == ["HF_TOKEN", "store"]
    spec.chmod(0o600)
    assert list(in_spec(spec)) == []


@pytest.mark.parametrize("text", ["[", "a: &a [*a]", "\0", ""])
def test_a_spec_that_is_none_holds_no_secret(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    assert list(in_spec(tmp_path / "spec.yaml")) == []


def test_secrets_on_command_lines_are_named(tmp_path: Path) -> None:
    words = [
        "longhaul",
        "train",
        "a.yaml",
        "--set",
        f"environment.WANDB_API_KEY={SECRET}",
        "--set",
        "steps=2",
    ]
    process(tmp_path, 9, words, inode=1)
    process(tmp_path, 10, ["x", "RAY_AUTH_MODE=token", "--token-file=/a/b"], inode=2)

    [found] = on_command_lines(tmp_path)

    assert (found.place, found.name) == ("process 9", "WANDB_API_KEY")
    assert SECRET not in repr(found)


# The trial of a bucket.


class Bucket(MemoryStore):
    """Refuses what its policy denies, as a server would."""

    def __init__(self, denied: set[str]) -> None:
        super().__init__()
        self.denied = denied

    def put(self, name: str, data: Buffer) -> None:
        self._check("put" if name == RECORD else "beside")
        super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        self._check("create" if name == RECORD else "beside")
        super().create(name, data)

    def delete(self, name: str) -> None:
        self._check("delete")
        super().delete(name)

    def _check(self, what: str) -> None:
        if what in self.denied:
            raise Denied(f"store: 403 {what}")


def trial(bucket: Store, url: str = "s3://b/longhaul") -> Trial:
    found = try_bucket(url, lambda _: bucket)
    assert found
    return found


def test_a_bucket_that_allows_everything_is_found_out_and_is_left_as_it_was() -> None:
    bucket = Bucket(set())
    found = trial(bucket)
    beside = "writes beside the store's prefix"
    assert found.allowed == ("log records rewritten", "log records deleted", beside)
    assert list(bucket.contents()) == []


def test_a_bucket_with_a_trainers_policy_is_well_and_keeps_one_marked_object() -> None:
    bucket = Bucket({"put", "delete", "beside"})
    assert trial(bucket).allowed == trial(bucket).allowed == ()
    assert list(bucket.contents()) == [RECORD]


def test_a_readers_credentials_are_tried_without_a_record() -> None:
    bucket = Bucket({"put", "create", "delete", "beside"})
    assert trial(bucket).refused == ("writes beside the store's prefix",)


def test_an_object_of_somebody_else_is_never_touched() -> None:
    bucket = Bucket(set())
    bucket.put(RECORD, b"theirs")
    assert "not the trial's own" in str(trial(bucket).failed)
    assert bucket.get(RECORD) == b"theirs"
    assert MARK != b"theirs"


def test_a_store_that_does_not_answer_is_a_finding_and_a_folder_is_not_tried() -> None:
    def fail(_: str) -> Store:
        raise StoreError("no such bucket")

    [found] = problems(Exposure(trial=try_bucket("s3://b/p", fail)))
    assert "no such bucket" in found.found
    assert try_bucket("/a/folder", fail) is None
    assert try_bucket("file:///a/folder", fail) is None


# What is said.

OPEN = Exposure(
    listeners=(
        RAYLET,
        Listener(
            address="127.0.0.1", port=8265, pid=8, process="dashboard.py", owner="ray", open_path="/api/jobs/"
        ),
        Listener(address="::", port=9100, pid=9, process="agent.py", owner="ray", open_path="/metrics"),
        Listener(address="0.0.0.0", port=22, pid=3, process="sshd", owner="other"),
    ),
    folders=(
        Folder(path="/tmp/ray", what="Ray's default folder", owner=1, is_ours=True, writers="everybody"),
        Folder(path="/tmp/longhaul-tokens-1", what="a cache", owner=1002, is_ours=False),
        Folder(
            path="/h/.ray/auth_token",
            what="Ray's token",
            owner=1,
            is_ours=True,
            readers="the group",
            is_secret=True,
        ),
    ),
    secrets=(LooseSecret(place="/h/.env", name="HF_TOKEN", remedy="chmod 600 it"),),
    trial=Trial(store="s3://b/p", allowed=("log records deleted",), refused=("log records rewritten",)),
    joins="10.0.0.1:6379",
)
CLOSED = Exposure(
    listeners=(
        Listener(
            address="127.0.0.1", port=6379, pid=7, process="gcs_server", owner="ray", asks_for_token=True
        ),
    ),
    folders=(Folder(path="results", what="the store", owner=1, is_ours=True, readers="everybody"),),
    trial=Trial(store="s3://b/p", refused=("log records rewritten", "log records deleted")),
    joins="10.0.0.1:6379",
    has_token_mode=True,
)


def test_everything_open_is_told_as_reviewed(golden: Golden) -> None:
    golden("doctor_security_open.txt", as_text(judge(OPEN)))


def test_nothing_open_is_told_as_reviewed(golden: Golden) -> None:
    assert problems(CLOSED) == []
    golden("doctor_security_closed.txt", as_text(judge(CLOSED)))


def test_each_finding_is_one_line_whatever_the_names_are() -> None:
    seen = Exposure(
        secrets=(LooseSecret(place="/h/a\nok    all: is well", name="X_TOKEN", remedy="hide it"),)
    )
    assert len(as_text(judge(seen)).splitlines()) == len(judge(seen)) + 1


@pytest.mark.parametrize(("seen", "code"), [(OPEN, 3), (CLOSED, 0)])
def test_it_ends_with_3_if_anything_is_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seen: Exposure, code: int
) -> None:
    monkeypatch.setattr(command, "exposure", lambda *_: seen)
    args = argparse.Namespace(store=None, spec=None, json=True)

    assert security(args) == code

    told = checked("doctor_security", capsys.readouterr().out)
    assert told["exit_code"] == code
    assert len(told["findings"]) == len(judge(seen))


def test_the_trials_object_is_where_the_policies_look_for_records() -> None:
    assert bucket_trial.RECORD.startswith("runs/") and "/log/" in bucket_trial.RECORD
