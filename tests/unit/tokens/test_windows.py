"""Which tokens a sample is: each token is predicted once, and what is held out is never trained on."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.training.task.windows import Windows, cut_into_windows

SEQ_LENS = st.integers(1, 9)


def tokens_of(windows: Windows, number: int) -> range:
    start = windows.start_of(number)
    return range(start, start + windows.window_tokens)


@given(num_tokens=st.integers(0, 200), seq_len=SEQ_LENS, num_held_out=st.integers(0, 5))
def test_every_token_is_predicted_once_and_none_is_both_trained_on_and_held_out(
    num_tokens: int, seq_len: int, num_held_out: int
) -> None:
    windows = cut_into_windows(num_tokens, seq_len=seq_len, num_held_out=num_held_out)
    trained = [tokens_of(windows, number) for number in range(windows.num_samples)]
    held_out = [tokens_of(windows, windows.num_samples + number) for number in range(num_held_out)]

    predicted = [token for window in trained for token in window[1:]]
    assert predicted == list(range(1, 1 + windows.num_samples * seq_len))
    tokens_trained = {token for window in trained for token in window}
    tokens_held_out = {token for window in held_out for token in window}
    assert not tokens_trained & tokens_held_out
    if trained:
        assert max(tokens_trained | tokens_held_out) < num_tokens


@given(num_tokens=st.integers(0, 200), seq_len=SEQ_LENS, num_held_out=st.integers(0, 5))
def test_there_is_no_room_for_one_sample_more(num_tokens: int, seq_len: int, num_held_out: int) -> None:
    windows = cut_into_windows(num_tokens, seq_len=seq_len, num_held_out=num_held_out)
    more = Windows(seq_len=seq_len, num_samples=windows.num_samples + 1)
    last = more.num_samples + num_held_out - 1
    assert tokens_of(more, last)[-1] >= num_tokens
