"""Uploading a generation of 32 files to a server 20 ms away, beside the way Ray Train uploads a checkpoint.

Ray's is ``pyarrow.fs.copy_files`` with the settings that its own function chooses for S3. Beside the speed it
shows what each says when the server lets an upload begin and then refuses every PUT.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pyarrow
import pyarrow.fs
import ray
from ray.train.v2._internal.execution import storage as rays

from checkpointing.stores.contract import Denied
from checkpointing.stores.opening import open_store

NUM_FILES, FILE_BYTES, REPEATS = 32, 2 << 20, 5
BOUND = 3.0
_PATIENCE_S = 30
_KEYS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    # Else pyarrow sends trailers that the plain server here does not read.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


def main() -> bool:
    os.environ.update(_KEYS)
    with TemporaryDirectory(prefix="longhaul-bench-") as name, _server() as port:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        folder, single = _files(Path(name) / "all", NUM_FILES), _files(Path(name) / "one", 1)
        theirs_s, ours_s = _in_turn(lambda: _theirs(folder, port, "kept"), lambda: _ours(folder, "kept"))
        told = [_told(lambda: _theirs(single, port, "denied")), _told(lambda: _ours(single, "denied"))]
    ratio = theirs_s / ours_s
    size = f"{NUM_FILES} files of {FILE_BYTES >> 20} MiB, 20 ms away"
    versions = f"ray {ray.__version__}, pyarrow {pyarrow.__version__}"
    print(f"upload         {ours_s:.2f} s for {size}")
    print(f"Ray Train's    {theirs_s:.2f} s with {versions}: {ratio:.1f}x (bound {BOUND}x)")
    print(f"each PUT 403   Ray Train's {told[0]}; ours {told[1]}")
    return ratio >= BOUND and told[1] == f"raises {Denied.__name__}"


def _files(folder: Path, count: int) -> Path:
    folder.mkdir()
    for index in range(count):
        (folder / f"{index:02}").write_bytes(os.urandom(FILE_BYTES))
    return folder


def _ours(folder: Path, place: str) -> None:
    store = open_store(f"s3://bench/{place}/generation")
    with ThreadPoolExecutor(NUM_FILES) as pool:
        done = [pool.submit(store.put, path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    for put in done:
        put.result()


def _theirs(folder: Path, port: int, place: str) -> None:
    endpoint = f"127.0.0.1:{port}"
    bucket = pyarrow.fs.S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1")
    rays._pyarrow_fs_copy_files(str(folder), f"bench/{place}/generation", destination_filesystem=bucket)


def _in_turn(*uploads: Callable[[], None]) -> list[float]:
    """The median of each, taken in turn so that a busy machine slows all alike."""
    taken: list[list[float]] = [[] for _ in uploads]
    for _ in range(REPEATS):
        for upload, seconds in zip(uploads, taken, strict=True):
            started = time.perf_counter()
            upload()
            seconds.append(time.perf_counter() - started)
    return [median(seconds) for seconds in taken]


def _told(upload: Callable[[], None]) -> str:
    try:
        upload()
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "returns as if all were stored"


@contextmanager
def _server() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.distant_s3", str(port)])
    try:
        _wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_S)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
