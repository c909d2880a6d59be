"""Cuts a long row of tokens into samples. Pure.

Sample n is the ``seq_len + 1`` tokens from token n x ``seq_len`` on, so each token is predicted once. The
held-out samples come last and start one token later, so that training and evaluation share no token.

Rows of chat data share no token anyway: there sample n is row n.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The cut into ``num_samples`` samples to train on, followed by the held-out samples."""

    seq_len: int
    num_samples: int
    are_rows: bool = False

    @property
    def window_tokens(self) -> int:
        return self.seq_len if self.are_rows else self.seq_len + 1

    def start_of(self, number: int) -> int:
        """The first token of a sample; samples from ``num_samples`` on are held out."""
        return number * self.seq_len + (number >= self.num_samples and not self.are_rows)


def cut_into_windows(num_tokens: int, *, seq_len: int, num_held_out: int) -> Windows:
    """Cuts as many samples to train on as fit beside the held-out samples; none if there is no room left."""
    held_out_tokens = num_held_out * seq_len + 1 if num_held_out else 0
    num_samples = max(0, (num_tokens - held_out_tokens - 1) // seq_len)
    return Windows(seq_len=seq_len, num_samples=num_samples)


def rows_of(num_tokens: int, *, seq_len: int, num_held_out: int) -> Windows:
    """The rows of chat data, of which the last ones are held out."""
    return Windows(seq_len=seq_len, num_samples=max(0, num_tokens // seq_len - num_held_out), are_rows=True)
