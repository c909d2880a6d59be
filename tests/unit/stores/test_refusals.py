"""What the texts of obstore's errors, in the forms in which it writes them, mean for the caller."""

import pytest

from checkpointing.stores.contract import Denied, Full, Missing, StoreError, Unavailable, Undecided
from checkpointing.stores.refusals import ServerAnswer, meaning, read_answer, refusal

SIGNED = "https://host/b/k?X-Amz-Signature=s3cret"
STATUS = (
    "Generic S3 error: Error performing PUT {signed} in 3ms - Server returned non-2xx status code: {status}: "
    "<Error><Code>{code}</Code><AWSAccessKeyId>AKIA5</AWSAccessKeyId></Error>\n\nDebug source:\n"
    'Generic {{ store: "S3", source: RetryError(RetryErrorImpl {{ inner: Status {{ status: {status} }} }}) }}'
)
REFUSED = (
    "Generic S3 error: Error performing GET http://host/b/k in 280ms - HTTP error: error sending request\n"
    "inner: Http(HttpError { kind: Connect, source: hyper::Error(Connect, "
    'Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }) })'
)
UNTRUSTED = "inner: Http(HttpError { kind: Connect, source: invalid peer certificate: UnknownIssuer })"


def answered(status: int, code: str) -> str:
    return STATUS.format(signed=SIGNED, status=status, code=code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (answered(503, "SlowDown"), Unavailable),
        (answered(500, "InternalError"), Unavailable),
        (answered(429, "TooManyRequests"), Unavailable),
        (answered(400, "RequestTimeout"), Unavailable),
        (answered(409, "OperationAborted"), Undecided),
        (answered(409, "ConditionalRequestConflict"), Undecided),
        (answered(409, "BlobAlreadyExists"), Undecided),
        (answered(412, "conditionNotMet"), Undecided),
        (REFUSED, Unavailable),
        ("something nobody has seen yet", Unavailable),
        (answered(403, "RequestTimeTooSkewed"), Unavailable),
        (answered(403, "AccessDenied"), Denied),
        (answered(401, "Unauthorized"), Denied),
        (answered(400, "ExpiredToken"), Denied),
        (answered(403, "QuotaExceeded"), Full),
        (answered(507, "InsufficientStorage"), Full),
        (answered(404, "NoSuchBucket"), StoreError),
        (answered(404, "ContainerNotFound"), StoreError),
        (answered(301, "PermanentRedirect"), StoreError),
        (answered(400, "EntityTooLarge"), StoreError),
        (UNTRUSTED, StoreError),
    ],
)
@pytest.mark.parametrize("is_write", [True, False])
def test_an_answer_means_what_the_caller_may_do(
    text: str, expected: type[StoreError], is_write: bool
) -> None:
    assert meaning(read_answer(text), is_write=is_write) is expected


def test_nothing_found_is_missing_to_a_reader_and_a_lost_upload_to_a_writer() -> None:
    answer = read_answer(answered(404, "NoSuchUpload"))
    assert meaning(answer, is_write=False) is Missing
    assert meaning(answer, is_write=True) is Unavailable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            answered(503, "SlowDown"),
            "store: s3://b: k: 503 SlowDown; it may work again later",
        ),
        (answered(403, "AccessDenied"), "store: s3://b: k: 403 AccessDenied; check the credentials"),
        (
            answered(403, "RequestTimeTooSkewed"),
            "store: s3://b: k: 403 RequestTimeTooSkewed; this machine's clock is wrong",
        ),
        (answered(403, "QuotaExceeded"), "store: s3://b: k: 403 QuotaExceeded; make room"),
        (
            answered(409, "OperationAborted"),
            "store: s3://b: k: 409 OperationAborted; it may work again later",
        ),
        (REFUSED, "store: s3://b: k: connection refused; is the address right?"),
        (UNTRUSTED, "store: s3://b: k: connect; its certificate is not trusted"),
        ("something nobody has seen yet", "store: s3://b: k: no answer; is the address right?"),
    ],
)
def test_a_message_says_where_what_and_what_to_do_and_no_secret(text: str, message: str) -> None:
    told = str(refusal(read_answer(text), place="store: s3://b: k", is_write=True))
    assert told.startswith(message)
    assert not any(secret in told for secret in ("s3cret", "AKIA5", "host"))


def test_a_range_behind_the_end_is_told_apart() -> None:
    assert read_answer(answered(416, "InvalidRange")).is_behind_the_end
    assert not ServerAnswer(status=404).is_behind_the_end
