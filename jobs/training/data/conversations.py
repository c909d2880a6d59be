"""Rows of chat data as a model takes them: ids, labels, and where conversations begin."""

import torch
from torch import Tensor

from jobs.training.task.token_index import BEGINS, ID_MASK, TRAINED

# The label of a token from which nothing is learnt, as in torch.
UNTRAINED = -100


def unpack(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ids, the labels and the beginnings of ``rows``, each (batch, length).

    A label is the next token of the same conversation if that is to be learnt, else ``UNTRAINED``.
    """
    ids, begins = rows & ID_MASK, (rows & BEGINS) != 0
    labels = torch.full_like(ids, UNTRAINED)
    labels[:, :-1] = torch.where(_is_label(rows)[:, 1:], ids[:, 1:], UNTRAINED)
    return ids, labels, begins


def num_labels(rows: Tensor) -> int:
    """How many tokens are learnt from ``rows``."""
    return int(_is_label(rows)[:, 1:].sum())


def _is_label(rows: Tensor) -> Tensor:
    return (rows & (TRAINED | BEGINS)) == TRAINED
