"""Only who has the run's key is believed, and only about what he said it of."""

import pytest

from cluster.run_key import MAC_BYTES, Refused, new_key, read, sign

KEY = new_key()
ABOUT = ("gen-8/1/read", 1, 0)


def test_a_message_comes_back_as_it_was_said() -> None:
    for said in (b"", b"verified", bytes(range(256)) * 40):
        assert read(KEY, ABOUT, sign(KEY, ABOUT, said)) == said


def test_no_two_runs_have_the_same_key() -> None:
    assert len({new_key() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "about",
    [
        ("gen-9/1/read", 1, 0),
        ("gen-8/1/read", 2, 0),
        ("gen-8/1/read", 1, 2),
        ("gen-8/1/read", 10),
        ("gen-8/1/read",),
    ],
    ids=["another name", "another sender", "another recipient", "run together", "less"],
)
def test_what_was_said_elsewhere_is_refused(about: tuple[str | int, ...]) -> None:
    with pytest.raises(Refused, match="its MAC is wrong"):
        read(KEY, ABOUT, sign(KEY, about, b"verified"))


def test_what_another_key_signed_is_refused() -> None:
    with pytest.raises(Refused, match="its MAC is wrong"):
        read(KEY, ABOUT, sign(new_key(), ABOUT, b"verified"))


def test_one_changed_bit_anywhere_is_refused() -> None:
    message = sign(KEY, ABOUT, b"verified")
    for place in range(len(message)):
        changed = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
        with pytest.raises(Refused, match="its MAC is wrong"):
            read(KEY, ABOUT, changed)


def test_what_was_cut_short_is_refused_wherever_it_was_cut() -> None:
    message = sign(KEY, ABOUT, b"verified")
    for length in range(len(message)):
        with pytest.raises(Refused):
            read(KEY, ABOUT, message[:length])


def test_what_is_too_long_is_refused_also_from_one_with_the_key() -> None:
    longest = bytes(2**23 - MAC_BYTES)
    assert read(KEY, ABOUT, sign(KEY, ABOUT, longest)) == longest
    with pytest.raises(Refused, match="8388609 bytes, expected at most 8388608"):
        read(KEY, ABOUT, sign(KEY, ABOUT, longest + b"x"))
