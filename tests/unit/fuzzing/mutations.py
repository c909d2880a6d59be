"""What is done to good files: parts are cut, repeated and exchanged for what has broken parsers before."""

from collections.abc import Sequence

from hypothesis import strategies as st

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


def mutated(samples: Sequence[bytes], nasty: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Good files with a few edits each; now and then one that is nothing of the kind.

    What is put in is taken from ``nasty`` as often as from what is nasty everywhere.
    """
    few = st.builds(changed, st.sampled_from(list(samples)), st.lists(_edits(nasty), min_size=1, max_size=4))
    return st.one_of(few, few, few, st.sampled_from(NASTY), st.binary(max_size=200))


def _edits(nasty: Sequence[bytes]) -> st.SearchStrategy[Edit]:
    own = [st.sampled_from(list(nasty))] if nasty else []
    return st.tuples(
        st.sampled_from(("replace", "insert", "cut", "repeat", "flip")),
        st.integers(0, 2**16),
        st.integers(0, 64),
        st.one_of(*own, st.sampled_from(NASTY), st.binary(max_size=12)),
    )


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
