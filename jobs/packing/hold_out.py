"""Says which documents are held out of the training: a function of their text alone. Pure.

The SHA-256 of a document's first ``HEAD_BYTES`` bytes decides, so copies of a document are always on one
side, whatever else is packed, in whatever order and from whatever files. What a smaller share holds out, a
larger one does too.
"""

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction

# Where the held-out set lies, below the training set.
HELD_OUT = "held-out"
HEAD_BYTES = 2**16
_PERCENT = re.compile(r"[0-9]{1,2}(\.[0-9]{1,9})?%")
# The share is compared with the digest's first 64 bits.
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOut:
    """Holds ``share`` of all documents out. ``share`` is between 0 and 1."""

    share: Fraction

    def takes(self, head: bytes) -> bool:
        """Whether a document is held out whose text, as UTF-8, begins with ``head``."""
        digest = hashlib.sha256(head[:HEAD_BYTES]).digest()
        return Fraction(int.from_bytes(digest[:_DIGEST_BYTES], "big"), 2 ** (8 * _DIGEST_BYTES)) < self.share


def as_hold_out(text: str) -> HoldOut:
    """Reads a share of documents, such as 0.5%. Raises ``ValueError``."""
    share = Fraction(text[:-1]) / 100 if _PERCENT.fullmatch(text) else Fraction(0)
    if not share:
        raise ValueError(f"{text[:40]!r} is no share of documents, such as 0.5%")
    return HoldOut(share=share)
