"""Translates a server's refusal, as client libraries report it, into what the caller may do. Pure.

Error texts hold addresses, signatures and key names. Only the status, the server's one-word code and the
system's own message are passed on.
"""

import re
from dataclasses import dataclass

from checkpointing.stores.contract import Denied, Full, Missing, StoreError, Unavailable, Undecided

_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_SYSTEM = re.compile(r'\bmessage: "([A-Za-z ]{1,80})"')
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CERTIFICATE = re.compile(r"invalid peer certificate|certificate verify failed|UnknownIssuer", re.IGNORECASE)

NO_KEYS = "no credentials were found"  # our own code for a request that was never sent
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "InsufficientAccountPermissions"}
_DENIED = {
    "AccessDenied", "AuthenticationFailed", "AuthorizationHeaderMalformed", "ExpiredToken",
    "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired", NO_KEYS,
}  # fmt: skip
# Clocks are usually corrected without us, so this refusal is retried.
_SKEWED = "RequestTimeTooSkewed"
_LATER = {"RequestTimeout", "SlowDown", "NoSuchUpload"}
# S3 answers these when two requests for one name run together, without and with a condition.
_UNDECIDED = {"OperationAborted", "ConditionalRequestConflict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The answer of a server. ``status`` is 0 if no answer came; ``code`` and ``detail`` may be empty."""

    status: int = 0
    code: str = ""
    detail: str = ""
    is_untrusted: bool = False

    @property
    def is_behind_the_end(self) -> bool:
        """True if the requested range begins after the end of the object."""
        return self.status == 416

    @property
    def wants_length(self) -> bool:
        """True if the server takes no request without a length, such as a copy."""
        return self.status == 411

    @property
    def is_undecided(self) -> bool:
        """True if another request for the same name was under way; the answer does not say which one had
        effect.
        """
        return self.code in _UNDECIDED

    @property
    def summary(self) -> str:
        told = " ".join(part for part in (str(self.status or ""), self.code) if part)
        return told or self.detail or "no answer"


def refusal(answer: ServerAnswer, *, place: str, is_write: bool) -> StoreError:
    """Returns the error to raise; its message begins with ``place``."""
    error = meaning(answer, is_write=is_write)
    if error is Missing:
        return Missing(f"{place} does not exist")
    return error(f"{place}: {answer.summary}; {_advice(error, answer)}")


def read_answer(text: str) -> ServerAnswer:
    """Parses the text of an obstore error."""
    status, code = _STATUS.search(text), _CODE.search(text)
    detail = _SYSTEM.search(text) or _KIND.search(text)
    return ServerAnswer(
        status=int(status[1]) if status else 0,
        code=code[1] if code else "",
        detail=detail[1].lower() if detail else "",
        is_untrusted=bool(_CERTIFICATE.search(text)),
    )


def meaning(answer: ServerAnswer, *, is_write: bool) -> type[StoreError]:
    """Returns the error type, which says what the caller may do. A plain ``StoreError`` is for the user to
    fix.

    A 404 for a write can only mean that the server lost an upload half way, so the write is repeated. 409
    and 412 mean that something else happened to the name at this moment. They never mean that the request
    is impossible: S3, Azure and Google send them for any request, even without a condition.
    """
    if answer.code in _FULL or answer.status == 507:
        return Full
    if answer.code == _SKEWED:
        return Unavailable
    if answer.code in _DENIED or answer.status in (401, 403):
        return Denied
    if answer.code in _NO_BUCKET or answer.is_untrusted:
        return StoreError
    if answer.status == 404:
        return Unavailable if is_write else Missing
    if answer.is_undecided or answer.status in (409, 412):
        return Undecided
    is_refused = 300 <= answer.status < 500 and answer.status not in (408, 425, 429)
    return StoreError if is_refused and answer.code not in _LATER else Unavailable


def _advice(error: type[StoreError], answer: ServerAnswer) -> str:
    if answer.code in _NO_BUCKET:
        return "make the bucket first, or choose another with --store"
    if answer.is_untrusted:
        return "its certificate is not trusted; name the one to trust in AWS_CA_BUNDLE"
    if answer.code == _SKEWED:
        return "this machine's clock is wrong; set it right"
    if error is Denied:
        return "check the credentials in the environment and what they allow"
    if error is Full:
        return "make room, or choose another with --store"
    if issubclass(error, Unavailable):
        return "it may work again later" if answer.status else "is the address right?"
    return "mend it, or choose another with --store"
