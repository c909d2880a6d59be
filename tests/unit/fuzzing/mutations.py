"""What is done to good files: parts are cut, repeated and exchanged for what has broken parsers before."""

from collections.abc import Sequence
from random import Random

# Digits, brackets, aliases, escapes, halves of characters, numbers that are none, keys that are there twice.
NASTY: tuple[bytes, ...] = (
    b"9" * 5000, b"1" + b"0" * 400, b"[" * 3000, b'{"a":' * 2000, b"- " * 2000, b"A" * 70000, b",,,,,,",
    b"&a [*a, *a]", b"!!python/object/apply:os.system [x]", b"1e999", b"-1e999", b"NaN", b"Infinity", b"-1",
    b"0", b"null", b"true", b'""', b"[]", b"{}", b"~", b"1:2:3", b"2000-99-99", b"1_0", b"0x10",
    b"\\ud800", b"\xff\xfe", b"\x00", b"\x1b]52;c;AAAA\x07", b"=cmd|'/c calc'!A0", b"../../etc/passwd",
    b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>", b"A1:XFD1048576", b"\r\n\r\n", b"%s%n",
    b"'", b'"', b"\\",
)  # fmt: skip

Edit = tuple[str, int, int, bytes]


def mutated(by: Random, samples: Sequence[bytes], nasty: Sequence[bytes] = ()) -> bytes:
    """Good files with a few edits each; now and then one that is nothing of the kind.

    What is put in is taken from ``nasty`` as often as from what is nasty everywhere.
    """
    match by.randrange(50):
        case 0:
            return by.choice(NASTY)
        case 1 | 2 | 3:
            return by.randbytes(by.randrange(200))
        case _:
            edits = [_edit(by, (NASTY, nasty) if nasty else (NASTY,)) for _ in range(by.randint(1, 4))]
            return changed(by.choice(samples), edits)


def _edit(by: Random, nasty: Sequence[Sequence[bytes]]) -> Edit:
    kind = by.choice(("replace", "insert", "cut", "repeat", "flip"))
    new = by.randrange(len(nasty) + 1)
    text = by.choice(nasty[new]) if new < len(nasty) else by.randbytes(by.randrange(13))
    return kind, by.randrange(2**16), by.choice((by.randrange(4), by.randrange(65))), text


def changed(data: bytes, edits: Sequence[Edit]) -> bytes:
    for kind, place, length, new in edits:
        at = place % (len(data) + 1)
        end = min(len(data), at + length)
        match kind:
            case "replace":
                data = data[:at] + new + data[end:]
            case "insert":
                data = data[:at] + new + data[at:]
            case "cut":
                data = data[:at] + data[end:]
            case "repeat":
                data = data[:at] + data[at:end] * 50 + data[end:]
            case _:
                data = (
                    data[:at] + bytes(byte ^ 1 << length % 8 for byte in data[at : at + 1]) + data[at + 1 :]
                )
    return data
