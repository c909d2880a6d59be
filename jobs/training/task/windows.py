"""Which tokens of a long row a sample is. Pure.

Sample n is ``seq_len + 1`` tokens from token n x ``seq_len`` on: each token is predicted once. The held-out
samples are the last ones, one token further on, so that training and evaluation share no token.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """``num_samples`` to train on; those that are held out come behind them."""

    seq_len: int
    num_samples: int

    @property
    def window_tokens(self) -> int:
        return self.seq_len + 1

    def start_of(self, number: int) -> int:
        """The first token of a sample; those from ``num_samples`` on are held out."""
        return number * self.seq_len + (number >= self.num_samples)


def cut_into_windows(num_tokens: int, *, seq_len: int, num_held_out: int) -> Windows:
    """As many samples as there is room for beside those held out; none where these leave no room."""
    held_out_tokens = num_held_out * seq_len + 1 if num_held_out else 0
    num_samples = max(0, (num_tokens - held_out_tokens - 1) // seq_len)
    return Windows(seq_len=seq_len, num_samples=num_samples)
