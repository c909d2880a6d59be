"""A cloud's settings that can't be meant: one line each, with where it comes from, without secrets."""

from pathlib import Path

import pytest

from checkpointing.stores.contract import StoreError
from checkpointing.stores.opening import open_store
from checkpointing.stores.settings import check_settings


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that the tests run on."""
    for name in ("AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def said(scheme: str = "s3", **variables: str) -> str:
    with pytest.raises(StoreError) as caught:
        check_settings(scheme, variables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "value", ["foo", "ftp://x", "http://", "https://a b", "http:///x", "http://me:word@host"]
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_that_is_none_is_named(name: str, value: str) -> None:
    text = said(**{name: value})
    assert text.startswith(f"store: the variable {name} is ")
    assert text.endswith("expected http://HOST:PORT or https://HOST")
    assert "word" not in text


def test_azures_endpoints_are_looked_at_too() -> None:
    assert "AZURE_ENDPOINT is '127.0.0.1:10000'" in said("az", AZURE_ENDPOINT="127.0.0.1:10000")


@pytest.mark.parametrize(
    "value",
    ["http://127.0.0.1:9000", "https://s3.example.org/", "http://[::1]:9000", "https://host/a/path-1"],
)
def test_endpoints_that_work_are_taken(value: str) -> None:
    check_settings("s3", {"AWS_ENDPOINT_URL": value, "AWS_REGION": "eu-central-1"})


def test_a_region_with_a_space_is_named() -> None:
    assert "AWS_REGION is 'us east'" in said(AWS_REGION="us east")


def test_a_bundle_of_certificates_that_is_none_is_named(tmp_path: Path) -> None:
    assert "it can't be read (No such file or directory)" in said(AWS_CA_BUNDLE=str(tmp_path / "no.pem"))
    (tmp_path / "junk.pem").write_text("junk", encoding="utf-8")
    assert "that file has no certificate" in said(AWS_CA_BUNDLE=str(tmp_path / "junk.pem"))


def test_a_damaged_certificate_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "half.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    with pytest.raises(StoreError, match="store: s3://bucket/prefix: "):
        open_store("s3://bucket/prefix")


def test_a_profile_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = us-east-1\n", encoding="utf-8")
    monkeypatch.setenv("AWS_PROFILE", "wrok")
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket/prefix")
    assert str(caught.value) == (
        "store: the variable AWS_PROFILE is 'wrok': AWS's files have no such profile (they have work)"
    )


@pytest.mark.parametrize("name", ["config", "credentials"])
def test_a_broken_file_is_named_with_its_line_and_without_what_the_line_holds(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("aws_secret_access_key = very-secret\n", encoding="utf-8")
    text = said()
    assert text.startswith(f"store: line 1 of '{tmp_path / name}' is no AWS configuration")
    assert "very-secret" not in text
