"""Secrets stay out of whatever is stored or said, and nothing else does."""

import pytest

from reporting.results.redaction import REDACTED, redacted, without_credentials


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "PASSWD",
        "GOOGLE_CREDENTIALS",
        "AUTH_HEADER",
    ],
)
def test_a_value_is_hidden_where_its_name_sounds_like_a_secret(name: str) -> None:
    assert redacted({"environment": {name: "s3cret"}}) == {"environment": {name: REDACTED}}
    assert redacted({name: ["s3cret", 1]}) == {name: [REDACTED, REDACTED]}


def test_everything_else_stays_as_it_is() -> None:
    plain = {
        "name": "smoke",
        "axes": {"world_size": [1, 2]},
        "store": "/data/results",
        "tier": None,
        "share": True,
    }
    assert redacted(plain) == plain


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://me:s3cret@host/path", "https://host/path"),
        ("https://s3cret@host", "https://host"),
        ("https://:s3cret@host:8080/path", "https://host:8080/path"),
        ("s3://bucket/path?X-Amz-Signature=s3cret", "s3://bucket/path"),
        ("https://host/path#place", "https://host/path#place"),
        ("proxy=http://me:s3cret@host:3128,https://me:s3cret@host", "proxy=http://host:3128,https://host"),
        ("http://me:s3cret@[::1", "http://[::1"),
        ("plain text with an @ and a ?", "plain text with an @ and a ?"),
        ("/data/results@home", "/data/results@home"),
    ],
)
def test_user_info_and_queries_leave_urls(text: str, kept: str) -> None:
    assert without_credentials(text) == kept
    assert redacted({"store": text}) == {"store": kept}
