"""Rows of text in which documents stand one behind another, each with an end token behind it."""

import torch
from torch import Tensor

from jobs.training.data.conversations import UNTRAINED


def unpack_documents(rows: Tensor, end_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ids, the labels and the beginnings of ``rows``, which have one token more than these.

    A label is the next token of the same document. Behind its end there is none: ``UNTRAINED``.
    """
    ids, ends = rows[:, :-1], rows[:, :-1] == end_id
    begins = ends.roll(1, dims=1)
    begins[:, 0] = True
    return ids, torch.where(ends, UNTRAINED, rows[:, 1:]), begins


def num_followed(rows: Tensor, end_id: int) -> int:
    """How many tokens are learnt from ``rows``."""
    return int((rows[:, :-1] != end_id).sum())
