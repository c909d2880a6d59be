"""The store contract on object storage: S3, Azure and Google, through obstore.

Tests against servers hold S3 and Azure to the contract. Google Cloud Storage uses the same library and
code, but is untested.

A large ``create`` first uploads under a temporary name, ``.tmp-`` and random digits, which no ``list``
shows. The server then copies the object to its name if that is free. A crash in between leaves the
temporary object, which ``abandoned_uploads`` finds.

Only ``create`` raises ``Conflict``. The services and the library repeat requests and lose answers. Even
after a ``Conflict`` the object may be the caller's own or missing; ``retrying`` checks that.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    InvalidPathError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    KeepsUploads,
    StoreError,
    Unavailable,
    Undecided,
    Upload,
    check_name,
    is_name,
)
from checkpointing.stores.local import is_half_written
from checkpointing.stores.probing import num_winners
from checkpointing.stores.refusals import NO_KEYS, ServerAnswer, read_answer, refusal
from checkpointing.stores.transfers import (
    Download,
    LinkRate,
    Stalled,
    TransferProgress,
    UploadFeed,
    finish,
    side_by_side,
)
from checkpointing.stores.versions import Look

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

Bucket = S3Store | AzureStore | GCSStore
Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_SIDE = ".tmp-"
_PAGE = 1000  # names per request: the servers' maximum
_PATH = re.compile(r'Path "(.*?)": ', re.DOTALL)
# Of a whole store. A server's listing may have no end.
MOST_LISTED = 1_000_000
_MAX_PARTS = 9_000  # S3 takes 10,000 parts
_PAGE_BYTES = 400 * _PAGE
_SMALL_BYTES = 64 << 10  # which any link that carries a run moves at once
# Swift's gateway, on one machine, lets two win in half of such races, and in 99 of 100 probes.
_NUM_RACES, _NUM_RACERS = 6, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPace:
    """The pace of transfers. A chunk is what one request moves; ``at_once`` chunks move at the same time.

    An upload shows progress whenever a chunk is done. ``stall_s`` must therefore exceed the time that all
    chunks under way take on the slowest link: the default allows 0.3 MB/s.

    A read shows progress with its bytes. One that is silent for ``quiet_s``, and what the link takes for the
    bytes that may come before the next sign, is asked again, until it was silent for ``stall_s`` in all. A
    write of at most 64 KiB shows no progress. It gets ``quiet_s``, and twice as long after one that stood
    still.
    ``guess`` is what a link moves per second before it was measured.
    """

    chunk_bytes: int = 8 << 20
    at_once: int = 4
    stall_s: float = 120
    quiet_s: float = 25
    guess: float = 300_000


class ObjectStore:
    """Objects below a prefix of a bucket. ``parts`` is the same bucket, whose requests are repeated so often
    that a part which fails does not fail its transfer. ``multiparts`` are S3's multipart uploads; other
    services have none.

    A write that raised ``Unavailable`` may have landed, or land within minutes: whole or not at all. 409
    and 412 are ``Undecided``, except for a ``create`` whose condition was not met: that is ``Conflict``.
    """

    def __init__(
        self,
        bucket: Bucket,
        url: str,
        *,
        parts: Bucket | None = None,
        multiparts: KeepsUploads | None = None,
        pace: TransferPace | None = None,
    ) -> None:
        self.url = url
        self._bucket = bucket
        self._parts = parts or bucket
        self._multiparts = multiparts
        self._pace = pace or TransferPace()
        self._link = LinkRate(self._pace.guess)
        self._soon_s = min(self._pace.quiet_s, self._pace.stall_s)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def probe(self) -> None:
        """Tests what the other operations rely on, with small objects that are then deleted.

        Some services keep to the condition of ``create`` until two callers run it at the same moment. Of
        those, Swift's passes once in a hundred times.
        """
        name = f"probe/{secrets.token_hex(8)}"
        try:
            self.create(name, b"1")
        except Undecided:  # It may have landed.
            self._forget(name)
            raise
        try:
            self._probe_create(name)
            self._require(self.get(name) == b"1", "read what was just written")
            self._require(name in self.list("probe"), "list what was just written")
        finally:
            self._forget(name)
        for number in range(_NUM_RACES):
            self._probe_race(f"{name}-{number}")

    def put(self, name: str, data: Buffer) -> None:
        with self._as_store_errors(check_name(name), is_write=True):
            self._upload(name, memoryview(data))

    def create(self, name: str, data: Buffer) -> None:
        with self._as_store_errors(check_name(name), is_write=True), self._as_conflict(name):
            if len(data) > self._pace.chunk_bytes:
                self._create_large(name, memoryview(data))
            else:
                self._create_at_once(name, data)

    def get(self, name: str) -> bytes:
        with self._as_store_errors(check_name(name)):
            return self._ask(lambda progress: partial(_read_whole, self._bucket, name, progress, self._link))

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """Reads a large ``into`` with several requests at once; all of them see the same version of the
        object.
        """
        return self.read(name, start, into)[0]

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        with self._as_store_errors(check_name(name)):
            if not into:
                return 0, self._ask(lambda _: partial(obstore.head, self._bucket, name))["e_tag"]
            landing = Download(into, self._progress())
            try:
                return self._read_pieces(name, start, len(into), landing)
            finally:
                landing.close()

    def size(self, name: str) -> int:
        return self.look(name)[0]

    def look(self, name: str) -> tuple[int, str | None]:
        with self._as_store_errors(check_name(name)):
            found = self._ask(lambda _: partial(obstore.head, self._bucket, name))
            return found["size"], found["e_tag"]

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Azure sends all names of the folder over the network; S3 and Google begin after ``after``."""
        for entry in self._entries(check_name(prefix), after=after):
            # A temporary object does not count as an object yet.
            if entry["path"] > after and is_name(entry["path"]):
                yield entry["path"]

    def contents(self) -> Iterator[str]:
        yield from (entry["path"] for entry in self._all_entries())

    def look_at_all(self) -> dict[str, Look]:
        return {entry["path"]: (entry["size"], _quoted(entry["e_tag"])) for entry in self._all_entries()}

    def delete(self, name: str) -> None:
        with self._as_store_errors(check_name(name), is_write=True):
            self._delete(name)

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        sides = [
            Upload(name=entry["path"], id="", started=entry["last_modified"])
            for entry in self._entries(check_name(prefix))
            if is_half_written(entry["path"]) and entry["last_modified"] < before
        ]
        if self._multiparts is None:
            return sides
        return [*sides, *self._multiparts.abandoned_uploads(prefix, before=before)]

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        if self._multiparts:
            self._multiparts.abort_uploads([upload for upload in uploads if upload.id])
        for side in (upload for upload in uploads if not upload.id):
            with self._as_store_errors(side.name, is_write=True):
                self._delete(side.name)

    def _probe_create(self, name: str) -> None:
        with suppress(Conflict):
            self.create(name, b"2")
            self._require(
                False, "refuse to create what exists: two writers would destroy each other's records"
            )

    def _probe_race(self, name: str) -> None:
        try:
            self._require(
                num_winners(self, name, _NUM_RACERS) < 2,
                "let only one of several create an object at the same moment: two drivers would destroy each "
                "other's records",
            )
        finally:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Deletes what a probe wrote. A probe that is repeated writes under another name."""
        try:
            self.delete(name)
        except Undecided:
            self.delete(name)

    def _require(self, is_met: bool, ability: str) -> None:
        if not is_met:
            raise StoreError(f"store: {self.url} does not {ability}; choose another with --store")

    def _upload(self, path: str, data: memoryview) -> None:
        if len(data) <= _SMALL_BYTES:
            own = bytes(data)
            self._soon(lambda: obstore.put(self._bucket, path, own, use_multipart=False))
            return
        progress = self._progress()
        chunk_bytes = max(self._pace.chunk_bytes, -(-len(data) // _MAX_PARTS))
        feed = UploadFeed(data, chunk_bytes, progress)
        upload = partial(
            obstore.put, self._parts if len(data) > chunk_bytes else self._bucket, path, feed,
            use_multipart=len(data) > chunk_bytes, chunk_size=chunk_bytes, max_concurrency=self._pace.at_once,
        )  # fmt: skip
        try:
            finish(upload, progress)
        finally:
            feed.close()

    def _create_large(self, name: str, data: memoryview) -> None:
        """Uploads to a temporary name and copies from there. Only S3 has conditional multipart uploads, but
        every service has conditional copies. Ceph 16 refuses them, and gets the bytes again in one request.
        """
        with suppress(FileNotFoundError):
            self._wait(lambda: obstore.head(self._bucket, name))
            raise AlreadyExistsError(name)
        folder, slash, _ = name.rpartition("/")
        side = f"{folder}{slash}{_SIDE}{secrets.token_hex(8)}"
        try:
            self._upload(side, data)
            self._wait(lambda: obstore.copy(self._bucket, side, name, overwrite=False))
        except GenericError as error:
            if not read_answer(str(error)).wants_length:
                raise
            self._create_at_once(name, data)
        finally:
            with suppress(BaseError, Stalled):
                self._delete(side)

    def _create_at_once(self, name: str, data: Buffer) -> None:
        """One request, which shows no progress before its end."""
        own = bytes(data)  # the caller may reuse its buffer as soon as this call returns
        create = partial(obstore.put, self._bucket, name, own, mode="create")
        if len(own) <= _SMALL_BYTES:
            self._soon(create)
        else:
            finish(create, self._progress(self._pace.stall_s + self._link.takes_s(len(own))))

    def _soon(self, call: Callable[[], object]) -> None:
        """A write of few bytes or none. One that stands still is asked again soon, each time with longer."""
        waited_s = self._soon_s
        try:
            finish(call, self._progress(waited_s))
        except Stalled:
            # Several that stand still together make the next one's time twice as long, once.
            self._soon_s = min(max(self._soon_s, 2 * waited_s), self._pace.stall_s)
            raise
        self._soon_s = min(self._pace.quiet_s, self._pace.stall_s)

    def _read_pieces(self, name: str, start: int, length: int, landing: Download) -> tuple[int, str | None]:
        size = self._pace.chunk_bytes
        ranges = [range(at, min(at + size, length)) for at in range(0, length, size)]
        bucket = self._parts if length > size else self._bucket
        read_one = partial(self._read_piece, bucket, name, start, landing)
        read = list(side_by_side(read_one, ranges, at_once=self._pace.at_once))
        versions = {version for _, version in read if version}
        if len(versions) > 1:
            raise Unavailable(f"store: {self.url}: {name} was replaced while it was read")
        return sum(count for count, _ in read), next(iter(versions), None)

    def _read_piece(
        self, bucket: Bucket, name: str, start: int, landing: Download, at: range
    ) -> tuple[int, str | None]:
        tries: list[Download] = []

        def begin(progress: TransferProgress) -> Callable[[], tuple[int, str | None]]:
            # What was given up may still run, and must write no more.
            for one in tries:
                one.close()
            tries.append(landing.part(at, progress))
            bounds = range(start + at.start, start + at.stop)
            return partial(_read_range, bucket, name, bounds, tries[-1], self._link)

        return self._ask(begin)

    def _entries(self, folder: str, *, after: str = "") -> Iterator["ObjectMeta"]:
        pages = obstore.list(self._bucket, folder or None, offset=after or None, chunk_size=_PAGE)
        with self._as_store_errors(folder):
            while page := self._next_page(pages):
                yield from page

    def _all_entries(self) -> Iterator["ObjectMeta"]:
        for number, entry in enumerate(self._entries("")):
            if number == MOST_LISTED:
                raise StoreError(
                    f"store: {self.url} lists more than {MOST_LISTED:,} objects; name a folder with fewer"
                )
            yield entry

    def _next_page(self, pages: Iterator[Sequence["ObjectMeta"]]) -> Sequence["ObjectMeta"]:
        """A listing that stands still can't be asked for its page again, so its caller begins it anew."""
        progress = self._progress(self._quiet_s(_PAGE_BYTES, left_s=self._pace.stall_s))
        try:
            return finish(lambda: next(pages, ()), progress)
        except Stalled:
            self._link.stood_still()
            raise

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._soon(lambda: obstore.delete(self._bucket, path))

    def _wait(self, call: Callable[[], Result]) -> Result:
        return finish(call, self._progress())

    def _ask(self, begin: Callable[[TransferProgress], Callable[[], Result]]) -> Result:
        """Does what ``begin`` returns, and again where nothing moves, until it was silent for ``stall_s``."""
        left_s = self._pace.stall_s
        while True:
            num_bytes = self._pace.at_once * self._link.stream_bytes
            progress = self._progress(self._quiet_s(num_bytes, left_s=left_s))
            try:
                return finish(begin(progress), progress)
            except Stalled:
                self._link.stood_still()
                left_s -= progress.stall_s
                if left_s <= 0:
                    raise Stalled(f"nothing moved for {self._pace.stall_s:g} s") from None
                _log.info("store: %s: nothing moved for %.0f s; asked again", self.url, progress.stall_s)

    def _quiet_s(self, num_bytes: int, *, left_s: float) -> float:
        """Returns how long a request may be silent. The last one gets all that is left."""
        quiet_s = self._pace.quiet_s + self._link.takes_s(num_bytes)
        return quiet_s if 2 * quiet_s <= left_s else left_s

    def _progress(self, stall_s: float | None = None) -> TransferProgress:
        return TransferProgress(stall_s or self._pace.stall_s, place=f"store: {self.url}")

    @contextmanager
    def _as_conflict(self, name: str) -> Iterator[None]:
        """Raises ``Conflict`` only if the server's code agrees. The library reports every 409 and 412 as
        "the object exists".
        """
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            if read_answer(str(error)).is_undecided:
                raise
            raise Conflict(f"store: {self.url}: {name} exists already") from None

    @contextmanager
    def _as_store_errors(self, name: str, *, is_write: bool = False) -> Iterator[None]:
        """Turns errors of the library into store errors. The library's own text may hold secrets and is
        dropped.
        """
        place = f"store: {self.url}: {name}"
        try:
            yield
        except Stalled as error:
            raise Unavailable(f"{place}: {error}; the server hangs, or the link is very slow") from None
        except UnauthenticatedError as error:
            answer = read_answer(str(error))
            raise refusal(
                answer if answer.status else ServerAnswer(code=NO_KEYS), place=place, is_write=is_write
            ) from None
        except InvalidPathError as error:
            found = _PATH.search(str(error))
            raise StoreError(
                f"{place}: lists {found[1] if found else 'a name'!r:.80}, which nobody can name (.., // or "
                "control characters); rename that object, or choose another place"
            ) from None
        except (BaseError, FileNotFoundError) as error:
            raise refusal(read_answer(str(error)), place=place, is_write=is_write) from None
        except BaseException as error:
            # A panic of the library is no Exception, and would end the thread of whoever catches those.
            if type(error).__name__ != "PanicException":
                raise
            raise StoreError(
                f"{place}: the library of object stores broke off; its words stand in this process's log"
            ) from None


def _read_whole(bucket: Bucket, path: str, progress: TransferProgress, link: LinkRate) -> bytes:
    pieces = []
    for piece in _stream(obstore.get(bucket, path), link):
        pieces.append(piece)
        progress.moved()
    return b"".join(pieces)


def _read_range(
    bucket: Bucket, path: str, bounds: range, landing: Download, link: LinkRate
) -> tuple[int, str | None]:
    """Returns the number of bytes read and the version of the object that they came from."""
    try:
        answer = obstore.get(bucket, path, options={"range": (bounds.start, bounds.stop)})
    except GenericError as error:
        if read_answer(str(error)).is_behind_the_end:
            return 0, None
        raise
    done = 0
    for piece in _stream(answer, link):
        done += landing.write(done, piece)
    return done, answer.meta["e_tag"]


def _stream(answer: "GetResult", link: LinkRate) -> Iterator[bytes]:
    """Yields the bytes as they come, and measures the link by those after the first."""
    num_bytes, began = 0, 0.0
    for piece in answer.stream(link.stream_bytes):
        num_bytes, began = (num_bytes + len(piece), began) if began else (0, time.monotonic())
        yield bytes(piece)
    if num_bytes:
        link.moved(num_bytes, time.monotonic() - began)


def _quoted(tag: str | None) -> str | None:
    """As the header of an answer has it. Azure's listings leave the quotes away."""
    return tag if tag is None or '"' in tag else f'"{tag}"'
