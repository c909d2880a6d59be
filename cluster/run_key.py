"""Messages between the processes of one run, which share a random key. Pure.

Each message carries a MAC over what it is about and what it says. Whoever does not have the key can neither
write a message nor use one that he has seen for anything else than what it was about.
"""

import hashlib
import hmac
import json
import secrets

KEY_BYTES = 32
MAC_BYTES = 32

# What a message is about: its name, its sender, whom it is for.
About = tuple[str | int, ...]


class Refused(Exception):
    """This message is not from a process that has the run's key, or not about this; nothing of it counts."""


def new_key() -> bytes:
    """One for each attempt: what was said in another one has no meaning in it."""
    return secrets.token_bytes(KEY_BYTES)


def mac(key: bytes, about: About, said: bytes) -> bytes:
    # JSON is the same for no two different tuples, and says by itself where it ends.
    return hmac.digest(key, json.dumps(about).encode() + b"\n" + said, hashlib.sha256)


def sign(key: bytes, about: About, said: bytes) -> bytes:
    return mac(key, about, said) + said


def read(key: bytes, about: About, message: bytes, most_bytes: int) -> bytes:
    """What the message says: at most ``most_bytes``, of somebody with the key. Else raises ``Refused``."""
    if len(message) > MAC_BYTES + most_bytes:
        raise Refused(f"{len(message)} bytes, expected at most {MAC_BYTES + most_bytes}")
    if len(message) < MAC_BYTES:
        raise Refused(f"{len(message)} bytes, expected a MAC of {MAC_BYTES} bytes first")
    said = message[MAC_BYTES:]
    if not hmac.compare_digest(mac(key, about, said), message[:MAC_BYTES]):
        raise Refused(
            "its MAC is wrong: its writer does not have the run's key, or wrote it for another place"
        )
    return said
