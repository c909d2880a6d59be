"""What all workers are told of how to pack chat data. Pure."""

from dataclasses import dataclass
from typing import Literal

TooLong = Literal["refuse", "cut", "leave-out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A Jinja template and the special tokens that it may name, such as ``eos_token``. ``where`` is for
    messages.
    """

    where: str
    text: str
    tokens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRecipe:
    """A row has ``seq_len`` tokens. ``too_long`` says what becomes of a conversation that has more."""

    template: ChatTemplate
    seq_len: int
    too_long: TooLong
