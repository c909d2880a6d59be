"""Secrets stay out of whatever is stored or said, and nothing else does."""

from dataclasses import asdict

import pytest

from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import as_plain
from reporting.markdown.report import report_md
from reporting.page import index_html
from reporting.results.redaction import REDACTED, is_secret, redacted, without_credentials
from reporting.results.rows import row_from
from tests.unit.result_rows import row


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
        "AZURE_DEVOPS_PAT",
        "BLOB_SAS",
        "SENTRY_DSN",
        "DS_PWD",
        "PGPASS_PASS",
        "STORAGE_CONNECTION_STRING",
        "URL_SIG",
        "TLS_PASSPHRASE",
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
    "name",
    [
        "ROCM_PATH",
        "GPU_PATTERN",
        "DS_SIGMA",
        "AMD_PASSES",
        "NCCL_SASL",
        "HSA_XNACK",
        "LD_PRELOAD",
        "PWDS_DIR",
    ],
)
def test_a_name_that_only_contains_the_letters_of_one_is_no_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("AccountName=a;AccountKey=s3cret==;Suffix=core", "AccountName=a;AccountKey=<redacted>;Suffix=core"),
        ("Endpoint=sb://h/;SharedAccessKey=s3cret", "Endpoint=sb://h/;SharedAccessKey=<redacted>"),
        ("SharedAccessSignature=sv=1&sig=s3cret", "SharedAccessSignature=<redacted>"),
        ("Uid=me;Pwd={s3cret; yes};Db=x", "Uid=me;Pwd=<redacted>;Db=x"),
        ("password: 's3 cret' next", "password: <redacted> next"),
        ("Authorization: Bearer s3cret", "Authorization: Bearer <redacted>"),
        ("sv=2022&se=2025-01-01&sig=s3cret", "<redacted>"),
        ("path ?se=2025&sp=r then", "path <redacted> then"),
        ("https://me:s3/cret@host/path", "https://host/path"),
        ("a token hf_abcdefghijklmnopqrst here", "a token <redacted> here"),
        ("id AKIAABCDEFGHIJKLMNOP here", "id <redacted> here"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.s3cret", "jwt <redacted>"),
        ("num_tokens=5, pad_token_id: 0, mean=3 se=0.1", "num_tokens=5, pad_token_id: 0, mean=3 se=0.1"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
    ],
)
def test_secrets_of_other_forms_leave_texts_and_nothing_else_does(text: str, kept: str) -> None:
    assert without_credentials(text) == kept


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


def test_a_stored_secret_is_in_no_row_comparison_page_or_text() -> None:
    """Results of older versions and of other tools may hold them."""
    held = {
        "variables": (("NVIDIA_PAT", "s3cret-1"), ("NCCL_DEBUG", "https://me:s3cret-2@host")),
        "fingerprint": (("image", "registry?sv=1&se=2&sig=s3cret-3"), ("BLOB_SAS", "s3cret-4")),
        "packages": (("ray", "2 @ git+https://s3cret-5@host/x"),),
        "warnings": ("password=s3cret-6",),
    }
    values = asdict(row(1000.0, group="nvidia", cell_id="nvidia"))
    rows = [row_from({**values, **held, "run_id": f"run-{number}"}) for number in range(4)] + [
        row(1000.0, group="amd", cell_id="amd") for _ in range(4)
    ]
    failed = {
        "error_reason": "https://h?sig=s3cret-7",
        "error_log_tail": ("Bearer s3cret-8",),
        "status": "crash",
    }
    rows.append(row_from({**values, **failed, "run_id": "failed", "cell_id": "other", "strategy": "fsdp"}))
    found = conclude("trial", "results", rows)
    told = [str(rows), str(as_plain(found)), index_html(found, []), report_md(found, [])]
    assert [text for text in told if "s3cret" in text] == []
    assert "NCCL_DEBUG" in told[1] and "https://host" in told[1]
