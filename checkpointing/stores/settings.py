"""Looks at a cloud's settings before its library does: one line for each that can't be meant.

A line names the setting, where it comes from (variable or file), what was found and what to do. Without this,
a mistyped endpoint ends in a panic of the library, and a profile that is not there in "no credentials".
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from errno import EINVAL

import botocore.session
from botocore.exceptions import BotoCoreError, ConfigNotFound, ConfigParseError, ProfileNotFound

from checkpointing.stores.contract import StoreError

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
    "gs": (),
}
# A host with an optional port and path, after http or https. User names and passwords have no place here.
_ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[A-Za-z0-9._~/-]*)?")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = re.compile(r"[A-Za-z0-9-]{1,60}")
_MOST_BUNDLE_BYTES = 16 * 2**20
_MOST_NAMES = 8


def check_settings(scheme: str, variables: Mapping[str, str] | None = None) -> None:
    """Raises ``StoreError`` for the first setting of this cloud that can't be meant."""
    values = os.environ if variables is None else variables
    for name in _ENDPOINTS[scheme]:
        if (value := values.get(name)) and not _ENDPOINT.fullmatch(value):
            raise _wrong(name, _shown(value), "expected http://HOST:PORT or https://HOST")
    if scheme == "s3":
        _check_regions(values)
        _check_bundle(values.get("AWS_CA_BUNDLE"))
        _check_profile(values.get("AWS_PROFILE"))


def _check_regions(values: Mapping[str, str]) -> None:
    for name in _REGIONS:
        if (value := values.get(name)) and not _REGION.fullmatch(value):
            raise _wrong(name, _shown(value), "expected a region such as us-east-1")


def _check_bundle(path: str | None) -> None:
    if not path:
        return
    try:
        text = _read(path)
    except OSError as error:
        raise _wrong("AWS_CA_BUNDLE", repr(path), f"it can't be read ({error.strerror})") from None
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise _wrong(
            "AWS_CA_BUNDLE", repr(path), "that file has no certificate; expected certificates in PEM"
        )


def _read(path: str) -> bytes:
    # A pipe that nobody writes to would block opening for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(EINVAL, "is no file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_BUNDLE_BYTES)
    finally:
        os.close(descriptor)


def _check_profile(asked: str | None) -> None:
    """Reads the configuration files as every later use of them does."""
    session = botocore.session.Session()
    try:
        session.get_scoped_config()
        # It also reads the file of credentials, which may be the broken one.
        known = session.available_profiles
    except ProfileNotFound:
        known = _profiles()
        raise _wrong(
            "AWS_PROFILE", repr(asked), f"AWS's files have no such profile ({_listed(known)})"
        ) from None
    except ConfigParseError as error:
        # Not the line itself: it may be a key that somebody pasted.
        at = re.search(r"line:? +(\d+)", str(error.kwargs.get("error")))
        where = f"line {at[1]} of " if at else ""
        raise StoreError(
            f"store: {where}{error.kwargs.get('path')!r} is no AWS configuration; "
            "expected [SECTION] and NAME = VALUE"
        ) from None
    except (ConfigNotFound, BotoCoreError, UnicodeError) as error:
        raise StoreError(f"store: AWS's configuration can't be read: {str(error)[:200]}") from None


def _profiles() -> Sequence[str]:
    """The profiles that there are; reading them needs a session that asks for none."""
    session = botocore.session.Session(profile="default")
    try:
        return sorted(session.available_profiles)
    except BotoCoreError:
        return ()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return "they have " + ", ".join(names[:_MOST_NAMES]) + more if names else "they have none"


def _wrong(name: str, found: str, advice: str) -> StoreError:
    return StoreError(f"store: the variable {name} is {found}: {advice}")


def _shown(value: str) -> str:
    """A value without what may be a password, at a length that people read."""
    return repr(re.sub(r"//[^/@]*@", "//…@", value)[:100])
