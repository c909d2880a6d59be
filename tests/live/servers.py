"""Real servers to store objects on, each a process of its own on a free port of this machine.

What is no Python package of ours, such as Swift and Azurite, is installed once into the user's cache. Where
that is not possible the tests that need it are skipped, and say why; a server that is there and does not
start fails.
"""

import base64
import getpass
import hashlib
import hmac
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
BUCKET = "checkpoints"
START_TIMEOUT_S = 180
INSTALL_TIMEOUT_S = 300
SWIFT = "swift==2.38.3"
AZURITE = "azurite@3.35.0"
MINISTACK = "ministack==1.5.33"
S3RVER = "s3rver@3.7.1"
MLFLOW = "mlflow[auth]==3.17.2"
# Azurite's account and key are fixed and published, and open nothing else.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
S3_KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "moto-secret", "AWS_REGION": "us-east-1"}
S3RVER_KEYS = {**S3_KEYS, "AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
MLFLOW_LOGIN = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": "a-long-secret"}
SWIFT_KEYS = {**S3_KEYS, "AWS_ACCESS_KEY_ID": "lab:admin", "AWS_SECRET_ACCESS_KEY": "swift-secret"}


@contextmanager
def moto(folder: Path, *, unchecked_requests: int | None = None) -> Iterator[int]:
    """Its port. S3's semantics, in memory, bytes unchecked. After so many requests it refuses what a key's
    policy does not allow; without the number, never.
    """
    port = free_port()
    checked = {"INITIAL_NO_AUTH_ACTION_COUNT": str(unchecked_requests)}
    environment = checked if unchecked_requests is not None else {}
    command = [sys.executable, "-m", "tests.live.moto_in_turn", str(port)]
    with _running(command, port, folder / "moto.log", environment):
        yield port


@contextmanager
def azurite(folder: Path) -> Iterator[int]:
    """Its port. Azure's blobs, in memory, with one container."""
    port = free_port()
    main = _installed(AZURITE, _install_from_npm) / "node_modules/azurite/dist/src/blob/main.js"
    command = [
        "node", str(main), "--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence",
        "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    with _running(command, port, folder / "azurite.log"):
        _make_container(port)
        yield port


@contextmanager
def ministack(folder: Path) -> Iterator[int]:
    """Its port. AWS, imitated in memory."""
    port = free_port()
    command = [str(_installed(MINISTACK, _install_from_pypi) / "bin" / "ministack")]
    with _running(command, port, folder / "ministack.log", {"GATEWAY_PORT": str(port), "BIND_HOST": HOST}):
        yield port


@contextmanager
def s3rver(folder: Path) -> Iterator[int]:
    """Its port. S3 on files, with one bucket; it takes no notice of conditions."""
    port = free_port()
    main = _installed(S3RVER, _install_from_npm) / "node_modules/s3rver/bin/s3rver.js"
    command = [
        "node", str(main), "--directory", str(folder), "--address", HOST, "--port", str(port), "--silent",
        "--configure-bucket", BUCKET,
    ]  # fmt: skip
    with _running(command, port, folder / "s3rver.log"):
        yield port


@contextmanager
def swift(folder: Path) -> Iterator[int]:
    """Its port, plain HTTP. OpenStack Swift on one disk with its S3 interface: durable, checks every key."""
    binaries = _installed(SWIFT, _install_from_pypi) / "bin"
    ports = {name: free_port() for name in ("account", "container", "object", "proxy")}
    _configure_swift(folder, binaries, ports)
    with ExitStack() as stack:
        for name, port in ports.items():
            command = [str(binaries / f"swift-{name}-server"), str(folder / f"{name}.conf")]
            stack.enter_context(_running(command, port, folder / f"{name}.log"))
        yield ports["proxy"]


@contextmanager
def mlflow(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A tracking server that takes ``MLFLOW_LOGIN`` alone, and leads a process group. What it was told lies
    in ``folder``, for the next one. It listens before it answers.
    """
    binary = _installed(MLFLOW, _install_from_pypi) / "bin" / "mlflow"
    login = folder / "login.ini"
    login.write_text(_MLFLOW_LOGIN.format(folder=folder, **MLFLOW_LOGIN), encoding="utf-8")
    environment = {"MLFLOW_AUTH_CONFIG_PATH": str(login), "MLFLOW_FLASK_SERVER_SECRET_KEY": "tests"}
    command = [
        str(binary), "server", "--app-name", "basic-auth", "--host", HOST, "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/runs.db",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    with _running(command, port, folder / "mlflow.log", environment) as process:
        yield process


def make_bucket(
    endpoint: str, keys: Mapping[str, str], *, authority: Path | None = None, name: str = BUCKET
) -> None:
    boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=keys["AWS_REGION"],
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        verify=str(authority) if authority else None,
    ).create_bucket(Bucket=name)


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server for this machine speaks HTTPS with, and the certificate its clients must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "longhaul tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "certificate.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, public


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        _wait_until_it_listens(process, port, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its workers too, which would outlive it
            process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)


def _installed(requirement: str, install: Callable[[str, Path], None]) -> Path:
    """Where it is, which is there once the marker is; half an installation is removed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longhaul-tests"
    place = cache / f"{requirement}-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]}"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            install(requirement, place)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{requirement} can't be installed here: {error}")
        (place / "ready").touch()
    return place


def _install_from_pypi(requirement: str, place: Path) -> None:
    """In an environment of its own: its dependencies are not ours."""
    _run([sys.executable, "-m", "venv", str(place)])
    _run([str(place / "bin" / "pip"), "install", "--quiet", requirement])


def _install_from_npm(requirement: str, place: Path) -> None:
    _run(["npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", "--silent", requirement])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, stdout=subprocess.DEVNULL)


def _make_container(port: int) -> None:
    """The one request that obstore has no call for, signed as Azure's shared keys are."""
    when = formatdate(usegmt=True)
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    headers = {"x-ms-date": when, "x-ms-version": "2021-12-02"}
    signed = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*signed, f"/{AZURE_ACCOUNT}{path}", "restype:container"])
    signature = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
    url = f"http://{HOST}:{port}{path}?restype=container"
    with urllib.request.urlopen(
        urllib.request.Request(url, method="PUT", headers=headers), timeout=10
    ) as answer:
        assert answer.status == 201


def _configure_swift(folder: Path, binaries: Path, ports: Mapping[str, int]) -> None:
    """One replica of everything on one disk, which is a folder here; one account with one key."""
    (folder / "disks" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(_SWIFT_CONF)
    for name in ("account", "container", "object"):
        builder = folder / f"{name}.builder"
        for step in (
            ["create", "4", "1", "0"],
            ["add", f"r1z1-{HOST}:{ports[name]}/d1", "1"],
            ["rebalance"],
        ):
            _run([str(binaries / "swift-ring-builder"), str(builder), *step])
        text = _SWIFT_SERVER.format(folder=folder, port=ports[name], user=getpass.getuser())
        app = f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n"
        (folder / f"{name}.conf").write_text(text + app)
    text = _SWIFT_SERVER.format(folder=folder, port=ports["proxy"], user=getpass.getuser())
    (folder / "proxy.conf").write_text(text + _SWIFT_PROXY)


_MLFLOW_LOGIN = """\
[mlflow]
default_permission = READ
database_uri = sqlite:///{folder}/login.db
admin_username = {MLFLOW_TRACKING_USERNAME}
admin_password = {MLFLOW_TRACKING_PASSWORD}
"""

_SWIFT_CONF = """\
[swift-hash]
swift_hash_path_suffix = tests
swift_hash_path_prefix = tests
[storage-policy:0]
name = one
default = yes
"""

_SWIFT_SERVER = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
devices = {folder}/disks
mount_check = false
workers = 1
log_address = {folder}/no-syslog
log_level = WARNING
fallocate_reserve = 0
disable_fallocate = true
"""

_SWIFT_FILTERS = (
    "catch_errors gatekeeper listing_formats bulk s3api tempauth slo dlo versioned_writes symlink"
)

_SWIFT_PROXY = f"""\
[pipeline:main]
pipeline = {_SWIFT_FILTERS} proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
""" + "".join(
    f"[filter:{name}]\nuse = egg:swift#{name}\n{options}"
    for name in _SWIFT_FILTERS.split()
    for options in [
        {
            "s3api": "location = us-east-1\n",
            "tempauth": "user_lab_admin = swift-secret .admin\n",
            "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true\n",
        }.get(name, "")
    ]
)
