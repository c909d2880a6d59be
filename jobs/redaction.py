"""What never goes into a log, a stored spec or a result."""

import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
REDACTED = "<redacted>"


def redacted(value: Any, name: str = "") -> Any:
    """``value`` without what a name calls a secret; user info and queries leave URLs."""
    if isinstance(value, dict):
        return {key: redacted(below, key) for key, below in value.items()}
    if isinstance(value, list):
        return [redacted(below, name) for below in value]
    if isinstance(value, str):
        return REDACTED if _SECRET_NAME.search(name) else without_credentials(value)
    return value


def without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or not (parts.username or parts.query):
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
