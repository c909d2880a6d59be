"""Redaction removes secrets, which must never reach a log, a stored spec, a result or a report.

Results of older versions and of other tools are redacted where they are read: ``rows`` makes no row that
holds a secret.
"""

import re
from functools import lru_cache
from typing import Any

# Parts of names: the long ones anywhere, the short ones as a word of their own.
_SECRET_NAME = re.compile(
    r"KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|BEARER|CONNECTION_?STRING|CONN_?STR"
    r"|(?:^|[_.-])(?:PAT|SAS|DSN|PWD|PASS|PW|SIG|SIGNATURE|CREDS?|JWT)(?:$|[_.-])",
    re.IGNORECASE,
)
# All of them are bounded, so that a long text takes a time in proportion to its length.
# A password may hold what a URL can't; a port is none.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\s?#]{0,1000}@|[^/\s?#@:]{0,200}:(?!\d+/)[^\s@]{0,200}@)")
_QUERY = re.compile(r"(://[^\s?#]{0,1000})\?[^\s#]*")
# Parts of a connection string, such as ``AccountKey=..;``, and what a command line or a header may hold.
_ASSIGNED = re.compile(
    r"((?:account|access|shared|private|api|secret)[_-]?(?:access)?[_-]?(?:key|signature)"
    r"|(?:access|auth|api|refresh|session|security)[_-]?token|secret|passw(?:or)?d|passphrase|pwd)"
    r"(\s?[=:]\s?)(?!\s)(?:\"[^\"]{0,200}\"|'[^']{0,200}'|\{[^}]{0,200}\}|[^\s;,\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bBearer\s)[^\s\"']+", re.IGNORECASE)
# A query that grants access, without the URL before it.
_WORD = re.compile(r"[^\s\"'<>,;]+")
_GRANT = re.compile(
    r"(?:^|[?&])(?:sig|x-amz-signature|x-goog-signature)=|&se=|(?:^|\?)se=[^&?]*&", re.IGNORECASE
)
# Tokens that are known by their beginnings.
_TOKENS = re.compile(
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|sk-)[A-Za-z0-9_-]{16,}|\bA[KS]IA[0-9A-Z]{16}\b"
    r"|\beyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]*"
)
REDACTED = "<redacted>"

Pairs = tuple[tuple[str, Any], ...]


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
    """Returns ``text`` without the secrets that can be told by their form: every URL in it is cut to scheme,
    host and path; passwords and keys of connection strings, bearer tokens and signed queries are replaced.
    """
    text = _QUERY.sub(r"\1", _USER_INFO.sub("", text))
    text = _ASSIGNED.sub(rf"\1\2{REDACTED}", _BEARER.sub(rf"\1{REDACTED}", text))
    return _TOKENS.sub(REDACTED, _WORD.sub(_without_grant, text))


def _without_grant(word: re.Match[str]) -> str:
    return REDACTED if _GRANT.search(word[0]) else word[0]


@lru_cache(maxsize=4096)
def without_secrets(pairs: Pairs) -> Pairs:
    """Returns names with their values, without those of secret names. Rows share theirs, hence the cache."""
    return tuple(
        (name, without_credentials(value) if isinstance(value, str) else value)
        for name, value in pairs
        if not is_secret(name)
    )
