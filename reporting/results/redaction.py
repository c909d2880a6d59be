"""Redaction removes secrets, which must never reach a log, a stored spec or a result."""

import re
from typing import Any

_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s?#]*@")
_QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#]*")
REDACTED = "<redacted>"


def is_secret(name: str) -> bool:
    """Whether a variable or key called ``name`` may hold a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(value: Any, name: str = "") -> Any:
    """Returns ``value`` with the values of secret names replaced; URLs lose user info and queries."""
    if isinstance(value, dict):
        return {key: redacted(below, key) for key, below in value.items()}
    if isinstance(value, list):
        return [redacted(below, name) for below in value]
    if value is not None and is_secret(name):
        return REDACTED
    return without_credentials(value) if isinstance(value, str) else value


def without_credentials(text: str) -> str:
    """Returns ``text`` with every URL in it cut to scheme, host and path."""
    return _QUERY.sub(r"\1", _USER_INFO.sub("", text))
