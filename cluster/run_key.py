"""Signs messages between the processes of one run, which share a random key. Pure.

Each message carries a MAC over its subject and its content. A process without the key cannot write a
message. It also cannot reuse a message that it has seen for another subject.
"""

import hashlib
import hmac
import json
import secrets

KEY_BYTES = 32
MAC_BYTES = 32
# torch's stores take no more than this in one message, but whoever appends to one makes it longer.
_MOST_BYTES = 2**23

# The subject of a message: its name, its sender and its receiver.
Subject = tuple[str | int, ...]


class Refused(Exception):
    """The message is not from a process with the run's key, or has another subject. Its content must be
    ignored.
    """


def new_key() -> bytes:
    """Returns a key for one attempt; a message of another attempt is not valid under it."""
    return secrets.token_bytes(KEY_BYTES)


def mac(key: bytes, subject: Subject, content: bytes) -> bytes:
    # JSON differs for any two different tuples and marks its own end.
    return hmac.digest(key, json.dumps(subject).encode() + b"\n" + content, hashlib.sha256)


def sign(key: bytes, subject: Subject, content: bytes) -> bytes:
    return mac(key, subject, content) + content


def read(key: bytes, subject: Subject, message: bytes) -> bytes:
    """Returns the content of a message that was written with the key. Raises ``Refused`` otherwise."""
    if len(message) > _MOST_BYTES:
        raise Refused(f"{len(message)} bytes, expected at most {_MOST_BYTES}")
    if len(message) < MAC_BYTES:
        raise Refused(f"{len(message)} bytes, expected a MAC of {MAC_BYTES} bytes first")
    content = message[MAC_BYTES:]
    if not hmac.compare_digest(mac(key, subject, content), message[:MAC_BYTES]):
        raise Refused(
            "its MAC is wrong: its writer does not have the run's key, or wrote it for another place"
        )
    return content
